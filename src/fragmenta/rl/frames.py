"""The observations of a replay as single frames: every frame is stored once.

That is for environments that stack their latest frames, and for pictures, which are stacks of one. A stack is put
together again when it is drawn. Its frames are the newest ones of this and the steps before; at the start of an episode
those before it are repeats of the first frame, or zeros: whichever the environment returned. The newest frame of
`next_observation` is that of the step after, except at the end of an episode: such frames are stored in a ring of their
own, as long as an eighth of the steps. If episodes are so short that it holds fewer of them than the replay holds ends
of episodes, the oldest are gone: such steps are drawn with weight 0 unless they terminated, in which case nothing
depends on the frame.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs import Transition
from fragmenta.rl.minibatches import put_steps, take_steps

ENDS = 8
"""Steps per last frame of an episode for which there is memory."""
FEWEST_ENDS = 64


class LatestFrame(NamedTuple):
    """What a replay of frames needs of a stacked observation."""

    frame: jax.Array
    """The newest frame."""
    repeats: jax.Array
    """Whether those before it are repeats of it, as they may be at the start of an episode."""
    is_alone: jax.Array
    """Whether there are such repeats or zeros before it, or nothing."""


class Frames(NamedTuple):
    """The frames of all observations in a replay of `length` steps of each environment."""

    newest: jax.Array
    """The newest frame of each observation, by step and environment: of those in the replay, of the steps before them
    that their stacks contain, and of the observation that follows; step `i` is in row `i` modulo the number of rows."""
    inserted: jax.Array
    """The number of steps of each environment so far."""
    age: jax.Array
    """How many frames of its own episode precede the newest one in the stack of each step."""
    repeats: jax.Array
    """Whether earlier frames are repeats of the first one of the episode, or else zeros."""
    ends: jax.Array
    """By environment: the frames after the last steps of episodes; end `i` is in row `i` modulo their number."""
    ended: jax.Array
    """The number of episodes that ended in each environment."""
    end: jax.Array
    """Which end each step is, if it is one."""
    is_over: jax.Array
    """Whether an episode ended with the latest step. To read that from the replay would make XLA copy all its flags."""

    @property
    def length(self) -> int:
        """Steps of each environment that the replay holds."""
        return self.age.shape[0]

    @property
    def stack(self) -> int:
        """Frames in an observation."""
        return self.newest.shape[0] - self.length


def single_frames(step: Transition, stack: int) -> Transition:
    """A step of all environments with `LatestFrame` in place of observations of `stack` frames, the newest last; with 1
    the observations are the frames."""
    frames = step.observation
    if stack == 1:
        flag = jnp.ones(frames.shape[:1], bool)
        return step._replace(observation=LatestFrame(frames, flag, flag))
    axes = tuple(range(1, frames.ndim))
    repeats = jnp.all(frames == frames[:, -1:], axis=axes)
    is_alone = repeats | jnp.all(frames[:, :-1] == 0, axis=axes)
    latest = LatestFrame(frames[:, -1], repeats, is_alone)
    return step._replace(observation=latest, next_observation=step.next_observation[:, -1])


def empty_frames(frame: Any, stack: int, length: int) -> Frames:
    """No frames yet, for those like this one (an array or a shape), environments first."""
    envs, *shape = frame.shape
    ends = max(length // ENDS, min(length, FEWEST_ENDS))
    return Frames(
        newest=jnp.zeros((length + stack, envs, *shape), frame.dtype),
        inserted=jnp.zeros(envs, jnp.int32),
        age=jnp.zeros((length, envs), jnp.uint8),
        repeats=jnp.zeros((length, envs), bool),
        ends=jnp.zeros((envs, ends, *shape), frame.dtype),
        ended=jnp.zeros(envs, jnp.int32),
        end=jnp.zeros((length, envs), jnp.int32),
        is_over=jnp.ones(envs, bool),
    )


def add_frames(frames: Frames, rows: jax.Array, latest: LatestFrame, following: jax.Array, ended: jax.Array) -> Frames:
    """Add the frames of a trajectory whose steps are in these rows of the replay, given where episodes ended in it."""
    count, stack = ended.shape[0], frames.stack
    slots = (frames.inserted + jnp.arange(count + 1)[:, None]) % frames.newest.shape[0]
    # After the loss of a life an episode ends, but its stack of frames may go on.
    starts = jnp.concatenate([frames.is_over[None], ended[:-1]]) & latest.is_alone

    def follow(before: tuple[jax.Array, jax.Array], x: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
        is_start, repeats = x
        age = jnp.where(is_start, 0, jnp.minimum(before[0] + 1, stack - 1))
        after = age, jnp.where(is_start, repeats, before[1])
        return after, after

    last = (rows[:1] - 1) % frames.length
    last_age, last_repeats = take_steps((frames.age, frames.repeats), last)
    carry = last_age[0].astype(jnp.int32), last_repeats[0]
    _, (age, repeats) = jax.lax.scan(follow, carry, (starts, latest.repeats))
    end = frames.ended + jnp.cumsum(ended, axis=0, dtype=jnp.int32) - 1
    total = frames.ended + jnp.sum(ended, axis=0, dtype=jnp.int32)
    return Frames(
        newest=put_steps(frames.newest, slots, jnp.concatenate([latest.frame, following[-1:]])),
        inserted=frames.inserted + count,
        age=put_steps(frames.age, rows, age),
        repeats=put_steps(frames.repeats, rows, repeats),
        ends=_write_ends(frames.ends, ended, end, total, following),
        ended=total,
        end=put_steps(frames.end, rows, end),
        is_over=ended[-1],
    )


def observations(
    frames: Frames, position: jax.Array, rows: jax.Array, ended: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The observations of the steps in these rows, those that follow them, and whether the latter are gone.

    `position` is the row that is written next, `ended` whether an episode ends with the step in a row.
    """
    stack, ring = frames.stack, frames.newest.shape[0]
    step = frames.inserted - 1 - (position - 1 - rows) % frames.length
    age, repeats, end = take_steps((frames.age, frames.repeats, frames.end), rows)
    before = jnp.arange(stack - 1, -1, -1)[:, None, None]  # how many steps before this one a frame is from
    within = jnp.minimum(before, age.astype(jnp.int32))
    sources = jnp.concatenate([step - within, step[None] + 1]) % ring
    drawn = take_steps(frames.newest, sources.reshape(-1, rows.shape[1]))
    drawn = drawn.reshape(*sources.shape, *drawn.shape[2:])
    is_blank = (before > within) & ~repeats
    stacks = jnp.where(_like(is_blank, drawn), 0, drawn[:-1]).astype(drawn.dtype)
    last = jax.vmap(lambda ends, slots: ends[slots], in_axes=(0, 1), out_axes=1)(
        frames.ends, end % frames.ends.shape[1]
    )
    following = jnp.where(_like(ended, last), last, drawn[-1])
    is_gone = ended & (frames.ended - end > frames.ends.shape[1])
    if stack == 1:
        return stacks[0], following, is_gone
    next_stacks = jnp.concatenate([stacks[1:], following[None]])
    return jnp.moveaxis(stacks, 0, 2), jnp.moveaxis(next_stacks, 0, 2), is_gone


def end_stacks(frames: Frames, newest: jax.Array, is_new: jax.Array) -> Frames:
    """New episodes start after the latest steps, which are in these rows (one per environment), and `is_new` says which
    had not ended."""
    following = take_steps(frames.newest, (frames.inserted % frames.newest.shape[0])[None])
    total = frames.ended + is_new[0]
    ends = _write_ends(frames.ends, is_new, frames.ended[None], total, following)
    end = put_steps(frames.end, newest, jnp.where(is_new, frames.ended, take_steps(frames.end, newest)))
    return frames._replace(ends=ends, ended=total, end=end, is_over=jnp.ones_like(frames.is_over))


def _write_ends(ends: jax.Array, ended: jax.Array, end: jax.Array, total: jax.Array, following: jax.Array) -> jax.Array:
    count = ends.shape[1]
    slots = jnp.where(ended & (total - end <= count), end % count, count)  # one past the last is not written

    def write(rows: jax.Array, slots: jax.Array, new: jax.Array) -> jax.Array:
        return rows.at[slots].set(new, mode="drop")

    return jax.vmap(write, in_axes=(0, 1, 1))(ends, slots, following)


def _like(flags: jax.Array, values: jax.Array) -> jax.Array:
    return flags.reshape(*flags.shape, *[1] * (values.ndim - flags.ndim))

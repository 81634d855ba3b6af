"""The replay: what is kept, what is drawn and how often, and returns over several steps."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta import Transition
from fragmenta.rl import keys_by_index
from fragmenta.rl.frames import single_frames
from fragmenta.rl.priorities import draw_rows, no_priorities, set_rows
from fragmenta.rl.replay import Replay, empty_replay, end_episodes, insert_steps, sample_steps
from fragmenta.rl.sequences import sample_sequences

ENVS, LENGTH, GAMMA = 3, 16, 0.9


def trajectory(start: int, count: int, seed: int = 0) -> Transition:
    """Steps whose observation is 100 times the environment plus the time; some end their episode."""
    draw = np.random.default_rng(seed + start)
    time = start + np.arange(count)[:, None] + 100 * np.arange(ENVS)
    terminated, truncated = draw.random((count, ENVS)) < 0.15, draw.random((count, ENVS)) < 0.1
    reward = draw.normal(size=(count, ENVS)).astype(np.float32)
    steps = time.astype(np.float32), time.astype(np.int32), reward, terminated, truncated, time + np.float32(0.5)
    return Transition(*map(jnp.asarray, steps))


def filled(inserts: list[int], prioritized: bool = False, n_step: int = 1) -> tuple[Replay, Transition]:
    """A replay after several inserts, and everything that was inserted."""
    parts = [trajectory(sum(inserts[:i]), count) for i, count in enumerate(inserts)]
    replay = empty_replay(jax.tree.map(lambda x: x[0], parts[0]), LENGTH, prioritized)
    for part in parts:
        replay = jax.jit(insert_steps, static_argnums=2)(replay, part, n_step)
    return replay, jax.tree.map(lambda *x: np.concatenate(x), *parts)


def keys(seed: int = 0) -> jax.Array:
    return keys_by_index(jax.random.key(seed), ENVS)


@pytest.mark.parametrize("inserts", [[1], [5], [5, 5], [1] * 40, [7, 7, 7, 7], [16, 16]])
def test_all_steps_that_are_kept_are_drawn_and_no_others(inserts: list[int]) -> None:
    replay, _ = filled(inserts)
    total = sum(inserts)
    batch = sample_steps(replay, keys(), 2_000, GAMMA)
    for env in range(ENVS):
        kept = np.arange(max(0, total - LENGTH), total) + 100 * env
        assert sorted(set(np.asarray(batch.action[:, env]))) == list(kept)
        counts = np.unique(np.asarray(batch.action[:, env]), return_counts=True)[1]
        assert counts.min() > 0.6 * 2_000 / len(kept), "all are as likely"
    np.testing.assert_array_equal(batch.observation, batch.action)
    np.testing.assert_array_equal(batch.next_observation, batch.action + 0.5)


@pytest.mark.brief("3-True-inserts1", "8-True-inserts3")
@pytest.mark.parametrize("inserts", [[8], [4, 4], [1] * 11, [4] * 3, [5] * 3])
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("span", [3, 8])
def test_a_partly_filled_replay_gives_only_steps_that_are_complete(
    span: int, prioritized: bool, inserts: list[int]
) -> None:
    replay, steps = filled(inserts, prioritized, span)
    whole = set(range(sum(inserts) - span + 1))
    rows = np.asarray(sample_steps(replay, keys(), 400, GAMMA, span).rows)
    assert set(rows.ravel().tolist()) == whole
    drawn = sample_sequences(replay, keys(), 400, span)
    assert set(np.asarray(drawn.rows).ravel().tolist()) == whole
    span_of = np.asarray(drawn.rows) + np.arange(span)[:, None, None]
    np.testing.assert_array_equal(drawn.steps.action, steps.action[span_of, np.arange(ENVS)])


@pytest.mark.brief("2-*", "5-*")
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 2, 5])
def test_returns_over_several_steps_stop_at_the_end_of_an_episode(n_step: int, prioritized: bool) -> None:
    replay, steps = filled([4] * 6, prioritized, n_step)
    batch = jax.tree.map(np.asarray, sample_steps(replay, keys(), 300, GAMMA, n_step))
    drawn = set()
    for sample in range(300):
        for env in range(ENVS):
            start = int(batch.action[sample, env]) - 100 * env
            drawn.add(start)
            total, discount, at = 0.0, 1.0, start
            while True:
                total += discount * steps.reward[at, env]
                discount *= GAMMA
                ended = steps.terminated[at, env] or steps.truncated[at, env]
                if ended or at == start + n_step - 1:
                    break
                at += 1
            discount *= not steps.terminated[at, env]
            np.testing.assert_allclose(batch.reward[sample, env], total, atol=1e-5)
            np.testing.assert_allclose(batch.discount[sample, env], discount, atol=1e-6)
            assert batch.next_observation[sample, env] == steps.next_observation[at, env]
    assert drawn == set(range(24 - LENGTH, 24 - n_step + 1)), "all, but those whose return is not known yet"


@pytest.mark.full
def test_rows_are_drawn_in_proportion_to_their_priorities() -> None:
    priorities = no_priorities(1_000, ENVS)
    rows = jnp.tile(jnp.asarray([3, 17, 999])[:, None], (1, ENVS))
    priorities = set_rows(priorities, rows, jnp.asarray([[1.0, 2.0, 1.0], [2.0, 0.0, 1.0], [5.0, 2.0, 2.0]]))
    drawn, likelihood = draw_rows(priorities, keys(), 4_000)
    for env, expected in enumerate(
        [{3: 1 / 8, 17: 2 / 8, 999: 5 / 8}, {3: 0.5, 999: 0.5}, {3: 0.25, 17: 0.25, 999: 0.5}]
    ):
        values, counts = np.unique(np.asarray(drawn[:, env]), return_counts=True)
        shares = dict(zip(values.tolist(), counts / 4_000, strict=True))
        assert shares == pytest.approx(expected, abs=0.01)
        for row, share in expected.items():
            np.testing.assert_allclose(likelihood[drawn[:, env] == row, env], share, rtol=1e-5)


def test_sums_of_nodes_stay_those_of_their_children() -> None:
    priorities, draw = no_priorities(3_000, ENVS), np.random.default_rng(0)
    change = jax.jit(set_rows)
    for _ in range(50):
        rows = jnp.asarray(draw.integers(0, 3_000, (20, ENVS)))
        priorities = change(priorities, rows, jnp.asarray(draw.random((20, ENVS)), jnp.float32))
    assert [level.shape[1] for level in priorities.levels] == [375, 47, 6, 1]
    for level, above in itertools.pairwise(priorities.levels):
        sums = level.sum(axis=-1)
        np.testing.assert_allclose(above.reshape(ENVS, -1)[:, : sums.shape[1]], sums, rtol=1e-5)


def test_where_nothing_may_be_drawn_the_first_row_is() -> None:
    rows, likelihood = draw_rows(no_priorities(1_000, ENVS), keys(), 5)
    assert not rows.any()
    assert not likelihood.any()


@pytest.mark.full
def test_weights_make_up_for_priorities() -> None:
    """With full importance, the weighted mean of anything is its mean over all steps, up to a factor."""
    replay, steps = filled([16], prioritized=True)
    draw = np.random.default_rng(0)
    rows = jnp.tile(jnp.arange(LENGTH)[:, None], (1, ENVS))
    priorities = set_rows(replay.priorities, rows, jnp.asarray(draw.uniform(0.2, 3.0, (LENGTH, ENVS)), jnp.float32))
    batch = sample_steps(replay._replace(priorities=priorities), keys(), 20_000, GAMMA, importance=1.0)
    weighted = np.sum(batch.weight * batch.reward) / np.sum(batch.weight)
    assert weighted == pytest.approx(steps.reward.mean(), abs=0.02)


def test_new_episodes_do_not_continue_the_returns_of_earlier_ones() -> None:
    replay, _ = filled([4])
    cut = end_episodes(replay)
    ended = cut.steps.terminated[3] | cut.steps.truncated[3]
    assert ended.all(), "the newest step is the last of its episode"
    np.testing.assert_array_equal(cut.steps.truncated[:3], replay.steps.truncated[:3])


def stacked_trajectories(stack: int, steps: int, pad: str, rate: float) -> Transition:
    """Steps of environments that stack frames: `pad` says what is before the first frame of an episode."""
    draw = np.random.default_rng(3)
    ended = draw.random((2, steps, ENVS)) < rate
    seen, following = (np.zeros((steps, ENVS, stack, 2, 2), np.uint8) for _ in "ab")
    for env in range(ENVS):
        current = None
        for time in range(steps):
            frame = draw.integers(1, 255, (2, 2), np.uint8)
            if current is None:
                before = np.broadcast_to(frame if pad == "repeats" else np.uint8(0), (stack - 1, 2, 2))
                current = np.concatenate([before, frame[None]])
            seen[time, env] = current
            following[time, env] = current = np.concatenate([current[1:], draw.integers(1, 255, (1, 2, 2), np.uint8)])
            if ended[:, time, env].any() and (pad != "lives" or draw.random() < 0.5):
                current = None
    number = np.broadcast_to(np.arange(steps)[:, None], (steps, ENVS)).astype(np.int32)
    return Transition(*map(jnp.asarray, (seen, number, number * 1.0, ended[0], ended[1], following)))


@pytest.mark.brief("4-1-repeats", "1-3-zeros")
@pytest.mark.parametrize("pad", ["repeats", "zeros", "lives"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("stack", [1, 2, 4])
def test_frames_that_are_stored_once_give_the_same_stacks(stack: int, n_step: int, pad: str) -> None:
    steps, count = stacked_trajectories(stack, 60, pad, 0.05), 3
    replays = [
        empty_replay(jax.tree.map(lambda x: x[0], steps), LENGTH, prioritized=True, stack=frames)
        for frames in (0, stack)
    ]
    insert = jax.jit(insert_steps, static_argnums=2)
    for start in range(0, 60, count):
        part = jax.tree.map(lambda x: x[start : start + count], steps)  # noqa: B023
        parts = part, jax.vmap(lambda step: single_frames(step, stack))(part)
        replays = [insert(replay, inserted, n_step) for replay, inserted in zip(replays, parts, strict=True)]
        if start == 33:
            replays = [end_episodes(replay) for replay in replays]
        whole, single = (sample_steps(replay, keys(start), 40, GAMMA, n_step, 0.5) for replay in replays)
        jax.tree.map(np.testing.assert_array_equal, whole, single)
        whole, single = (sample_sequences(replay, keys(start), 20, n_step, 0.5) for replay in replays)
        jax.tree.map(np.testing.assert_array_equal, whole, single)


@pytest.mark.parametrize("stack", [0, 2])
def test_one_part_may_start_anew_without_the_others(stack: int) -> None:
    """As after the loss of a shard: each part keeps, draws and counts as if it were alone."""
    steps, count = stacked_trajectories(2, 60, "repeats", 0.05), 5
    insert, span = jax.jit(insert_steps, static_argnums=2), 3

    def empty(envs: slice) -> Replay:
        return empty_replay(jax.tree.map(lambda x: x[0, envs], steps), LENGTH, prioritized=True, stack=stack)

    def joined(first: Replay, rest: Replay) -> Replay:
        whole = jax.eval_shape(lambda: empty(slice(ENVS)))

        def join(like: jax.ShapeDtypeStruct, a: jax.Array, b: jax.Array) -> jax.Array:
            axis = next(i for i, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if x != y)
            assert like.shape[axis] == ENVS
            return jnp.concatenate([a, b], axis)

        return jax.tree.map(join, whole, first, rest)

    parts = slice(1), slice(1, ENVS)
    alone = [empty(envs) for envs in parts]
    together = joined(*alone)
    for start in range(0, 60, count):
        if start == 40:
            alone[0] = empty(parts[0])
            together = joined(*alone)
        part = jax.tree.map(lambda x: x[start : start + count], steps)  # noqa: B023
        part = jax.vmap(lambda step: single_frames(step, stack))(part) if stack else part
        together = insert(together, part, span)
        for i, envs in enumerate(parts):
            alone[i] = insert(alone[i], jax.tree.map(lambda x: x[:, envs], part), span)  # noqa: B023
        jax.tree.map(np.testing.assert_array_equal, together, joined(*alone))
        whole = sample_steps(together, keys(start), 40, GAMMA, span, 0.5)
        for replay, envs in zip(alone, parts, strict=True):
            one = sample_steps(replay, keys(start)[envs], 40, GAMMA, span, 0.5)
            jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:, envs], b), whole, one)  # noqa: B023
    assert list(together.filled) == [LENGTH] * ENVS
    assert list(together.inserted) == [20, 60, 60]


def test_frames_stored_once_take_little_more_than_the_frames() -> None:
    step = jax.tree.map(lambda x: x[0], stacked_trajectories(4, 1, "zeros", 0.0))
    frames = jax.eval_shape(lambda: empty_replay(step, 10_000, stack=4)).steps.observation
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in (frames.newest, frames.ends))
    assert size <= 1.2 * 10_000 * step.observation[:, 0].nbytes

"""Atari games of the Arcade Learning Environment, many at once in its own threads, with the standard preprocessing.

Four frames per action, the pixel-wise maximum of the last two; greyscale, 84 by 84; a stack of four; up to thirty no-op
frames and, where a game needs it, the fire button at the start. Arguments of AtariVectorEnv change each of these.

The learner gets rewards clipped to -1 and 1, unless `reward_clipping` is false, but episode returns use the game's own
score, as in the literature. An episode is a whole game. With `episodic_life` it is one life, after which the game
restarts; with `life_loss_info` it is one life, after which the game continues; returns are then per life.
"""

import re
from typing import Any

import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.error import Error
from gymnasium.vector import AutoresetMode

from fragmenta_core.arrays import Arrays, Description
from fragmenta_core.faults import UnusableError, unknown
from fragmenta_host.gymnasium_spaces import action_maker, action_space, convert

FRAMES = {"frameskip": 4, "max_num_frames_per_episode": 108_000}
"""Frames per action, and maximum frames per episode: half an hour of play."""
STICKY = 0.25
"""Probability that a game with a -v5 name repeats the last action instead of taking the given one."""


class AtariVector:
    """A vector of one game: `pong`, `Pong`, or `ALE/Pong-v5`, which also means sticky actions."""

    @staticmethod
    def describe(name: str, arguments: dict[str, Any], stack: int) -> Description:
        """The game's spaces and limits."""
        try:
            env = _make(name, arguments, stack, 1, 1)
        except UnusableError:
            raise
        except (TypeError, ValueError, RuntimeError, Error) as error:
            raise UnusableError(f"cannot make ale:{name}: {error}".splitlines()[0]) from error
        frames = {**FRAMES, **arguments}
        limit = -(-frames["max_num_frames_per_episode"] // frames["frameskip"])
        spaces = convert(env.single_observation_space), action_space(env.single_action_space)
        return Description(*spaces, None, limit, bool(arguments.get("reward_clipping", True)))

    def __init__(self, name: str, arguments: dict[str, Any], stack: int, seeds: np.ndarray, threads: int) -> None:
        self._env: Any = _make(name, arguments, stack, len(seeds), threads)
        self._seeds, self._to_actions = np.asarray(seeds, np.int64), action_maker(self._env.single_action_space)

    def reset(self) -> list[np.ndarray]:
        """The first observations."""
        observation, info = self._env.reset(seed=self._seeds)
        self._frames = info["episode_frame_number"].copy()
        return [observation]

    def step(self, arrays: Arrays, rows: slice) -> None:
        """One step of all games; where it ended a game, the next one has started."""
        action = np.asarray(self._to_actions(arrays.action[rows]))
        observation, arrays.reward[rows], terminated, truncated, info = self._env.step(action)
        arrays.terminated[rows], arrays.truncated[rows] = terminated, truncated
        arrays.next[0][rows] = observation
        frames = info["episode_frame_number"]
        ended = terminated | truncated
        if ended.any():
            arrays.observation[0][rows][ended] = observation[ended]
            # After the loss of a life the game may continue; then this is also the last observation.
            restarted = ended & (frames <= self._frames)
            arrays.next[0][rows][restarted] = info["final_obs"][restarted]
        self._frames = frames.copy()

    def close(self) -> None:
        """Drop the vector; its threads end when it is garbage-collected."""
        self._env = None


def _make(name: str, arguments: dict[str, Any], stack: int, count: int, threads: int) -> AtariVectorEnv:
    plain, version = re.fullmatch(r"(?:ALE/)?(.*?)(-v5)?", name).groups()  # pyright: ignore[reportOptionalMemberAccess]
    games = {game.replace("_", ""): game for game in roms.get_all_rom_ids()}
    game = games.get(plain.replace("_", "").lower())
    if game is None:
        raise unknown("Atari game", name, games.values())
    defaults: dict[str, Any] = {**FRAMES, "repeat_action_probability": STICKY if version else 0.0}
    if stack > 1:
        defaults["stack_num"] = stack
    return AtariVectorEnv(
        game,
        count,
        num_threads=min(threads, count),
        autoreset_mode=AutoresetMode.SAME_STEP,
        # Rewards are clipped later, for the learner only; see the module docstring.
        **{**defaults, **arguments, "reward_clipping": False},
    )

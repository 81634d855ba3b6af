"""Films of a policy: what is on them, and what cannot be drawn."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from fragmenta import A2C, MAPPO, PPO, ConfigError, EnvOptions, RecurrentPPO, Stack, make
from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.envs.render import picture_of
from fragmenta.evaluation.evaluate import evaluate
from fragmenta.evaluation.playing import Frame, play
from fragmenta.evaluation.videos import write_video
from fragmenta_core.spaces import Box

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden": (8,)}


def untrained(algorithm: Algorithm, env: Environment) -> Any:
    return algorithm.params(jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0)))


def frames(algorithm: Algorithm, env: Environment, **how: Any) -> list[Frame]:
    return list(play(algorithm, env, untrained(algorithm, env), **how).frames)


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        (PPO(**SMALL), make("CartPole-v1")),
        (RecurrentPPO(**SMALL, memory=4), Stack(make("Pendulum-v1"), 2)),
        (A2C(**SMALL), make("MountainCar-v0")),
        (A2C(**SMALL), make("Acrobot-v1")),
        (MAPPO(num_envs=4, horizon=5, hidden=(8,)), make("jaxmarl:simple_tag")),
        pytest.param(A2C(**SMALL), make("gymnax:Breakout-MinAtar"), marks=pytest.mark.full),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.filterwarnings("ignore:scatter inputs")
def test_every_picture_shows_another_state(algorithm: Algorithm, env: Environment) -> None:
    found = frames(algorithm, env, max_steps=6)
    assert all(frame.picture.dtype == np.uint8 and frame.picture.shape[2] == 3 for frame in found)
    assert all(side % 2 == 0 and side >= 300 for side in found[0].picture.shape[:2])
    assert not np.array_equal(found[0].picture, found[-1].picture)
    assert len(np.unique(found[0].picture.reshape(-1, 3), axis=0)) > 2, "something is drawn"
    assert found[-1].last


def test_a_film_shows_the_episodes_that_are_evaluated() -> None:
    algorithm, env = PPO(**SMALL), make("CartPole-v1")
    found = [frame for frame in frames(algorithm, env, episodes=3, seed=4) if frame.last]
    expected = evaluate(algorithm, env, untrained(algorithm, env), episodes=3, seed=4)
    assert [frame.total for frame in found] == expected.returns.tolist()
    assert [frame.step for frame in found] == expected.lengths.tolist()


def test_environments_on_the_host_draw_themselves() -> None:
    found = frames(A2C(**SMALL), make("drawn_envs:Drawn", EnvOptions(env_mode="serial")), episodes=2)
    assert [frame.picture[0, 0, 0].item() for frame in found] == [0, 40, 80, 120, 160, 200] * 2
    assert found[-1].total == 5


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("drawn_envs:Drawn", '{"picture": "none"}', "its render.. gives NoneType, not a picture"),
        ("drawn_envs:Drawn", '{"picture": "raises"}', "cannot draw drawn_envs:Drawn: no screen"),
        ("drawn_envs:Undrawn", "{}", "cannot draw drawn_envs:Undrawn: its constructor takes no render_mode"),
        ("envpool:CartPole-v1", "{}", "cannot draw envpool:CartPole-v1: envpool gives no pictures"),
        ("ProbeConstant", "{}", "there is no picture of ProbeConstant: only of CartPole"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(name: str, arguments: str, says: str) -> None:
    env = make(name, EnvOptions(env_args=arguments))
    with pytest.raises(ConfigError, match=says) as raised:
        frames(A2C(**SMALL), env)
    assert "\n" not in str(raised.value)


def test_the_film_is_written_whole(tmp_path: Path) -> None:
    algorithm, env = A2C(**SMALL), make("drawn_envs:Drawn", EnvOptions(env_mode="serial"))
    video = play(algorithm, env, untrained(algorithm, env), episodes=2)
    endings = write_video(video, tmp_path / "video.gif")
    assert [(ending.step, ending.total) for ending in endings] == [(5, 5.0), (5, 5.0)]
    assert [path.name for path in tmp_path.iterdir()] == ["video.gif"]
    with Image.open(tmp_path / "video.gif") as image:
        assert image.size == (48, 32 + 26)
        first = np.asarray(image.convert("RGB"))
        image.seek(3)
        assert image.info["duration"] == 100
        later = np.asarray(image.convert("RGB"))
    assert first[40, 10].tolist() == [0, 0, 0]
    assert abs(int(later[40, 10, 0]) - 120) <= 2, "as near as the colors of a GIF get"


def test_a_film_that_fails_leaves_nothing(tmp_path: Path) -> None:
    algorithm = A2C(**SMALL)
    env = make("drawn_envs:Drawn", EnvOptions(env_args='{"picture": "none"}', env_mode="serial"))
    with pytest.raises(ConfigError):
        write_video(play(algorithm, env, untrained(algorithm, env)), tmp_path / "video.gif")
    assert not list(tmp_path.iterdir())


def test_observations_that_are_pictures() -> None:
    color = np.zeros((8, 6, 3), np.uint8)
    color[0, 0] = (1, 2, 3)
    for space, shown in (
        (Box(0, 255, (8, 6, 3), "uint8"), color),
        (Box(0, 255, (3, 8, 6), "uint8"), np.moveaxis(color, -1, 0)),
        (Box(0, 255, (2, 8, 6, 3), "uint8"), np.stack([color * 0, color])),
    ):
        found = picture_of(space, shown)
        assert found is not None
        assert found[0, 0].tolist() == [1, 2, 3]
    grey = picture_of(Box(0, 255, (4, 8, 6), "uint8"), np.stack([np.full((8, 6), i, np.uint8) for i in range(4)]))
    assert grey is not None
    assert grey[0, 0].tolist() == [3, 3, 3], "the latest of four"
    assert picture_of(Box(-1, 1, (4,)), np.zeros(4)) is None

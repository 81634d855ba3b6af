"""Videos of a policy: their frames, and environments that cannot be rendered."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from fragmenta import A2C, MAPPO, PPO, ConfigError, EnvOptions, RecurrentPPO, Stack, make
from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.envs.render import observation_image
from fragmenta.evaluation.evaluate import evaluate
from fragmenta.evaluation.playing import Frame, play
from fragmenta.evaluation.videos import CAPTION, captioned, write_video
from fragmenta_core.spaces import Box

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden": (8,)}


def untrained(algorithm: Algorithm, env: Environment) -> Any:
    return algorithm.params(jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0)))


def frames(algorithm: Algorithm, env: Environment, **options: Any) -> list[Frame]:
    return list(play(algorithm, env, untrained(algorithm, env), **options).frames)


@pytest.mark.brief("PPO-*")
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
def test_frames_show_changing_states(algorithm: Algorithm, env: Environment) -> None:
    video = frames(algorithm, env, max_steps=6)
    assert all(frame.picture.dtype == np.uint8 and frame.picture.shape[2] == 3 for frame in video)
    assert all(side % 2 == 0 and side >= 300 for side in video[0].picture.shape[:2])
    assert not np.array_equal(video[0].picture, video[-1].picture)
    assert len(np.unique(video[0].picture.reshape(-1, 3), axis=0)) > 2, "something is drawn"
    assert video[-1].last


@pytest.mark.full
def test_a_video_shows_the_evaluated_episodes() -> None:
    algorithm, env = PPO(**SMALL), make("CartPole-v1")
    last_frames = [frame for frame in frames(algorithm, env, episodes=3, seed=4) if frame.last]
    expected = evaluate(algorithm, env, untrained(algorithm, env), episodes=3, seed=4)
    assert [frame.total for frame in last_frames] == expected.returns.tolist()
    assert [frame.step for frame in last_frames] == expected.lengths.tolist()


@pytest.mark.full
def test_environments_on_the_host_render_themselves() -> None:
    video = frames(A2C(**SMALL), make("drawn_envs:Drawn", EnvOptions(env_mode="serial")), episodes=2)
    assert [frame.picture[0, 0, 0].item() for frame in video] == [0, 40, 80, 120, 160, 200] * 2
    assert video[-1].total == 5


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("drawn_envs:Drawn", '{"picture": "none"}', "its render.. returns NoneType, not an image"),
        ("drawn_envs:Drawn", '{"picture": "raises"}', "cannot draw drawn_envs:Drawn: no screen"),
        ("drawn_envs:Undrawn", "{}", "cannot draw drawn_envs:Undrawn: its constructor takes no render_mode"),
        ("envpool:CartPole-v1", "{}", "cannot draw envpool:CartPole-v1: envpool cannot render"),
        ("ProbeConstant", "{}", "ProbeConstant cannot be rendered: only CartPole"),
    ],
)
def test_environments_that_cannot_be_rendered_are_refused_in_one_line(name: str, arguments: str, message: str) -> None:
    env = make(name, EnvOptions(env_args=arguments))
    with pytest.raises(ConfigError, match=message) as raised:
        frames(A2C(**SMALL), env)
    assert "\n" not in str(raised.value)


@pytest.mark.full
def test_the_video_is_complete(tmp_path: Path) -> None:
    algorithm, env = A2C(**SMALL), make("drawn_envs:Drawn", EnvOptions(env_mode="serial"))
    video = play(algorithm, env, untrained(algorithm, env), episodes=2)
    endings = write_video(video, tmp_path / "video.gif")
    assert [(ending.step, ending.total) for ending in endings] == [(5, 5.0), (5, 5.0)]
    assert [path.name for path in tmp_path.iterdir()] == ["video.gif"]
    with Image.open(tmp_path / "video.gif") as image:
        assert image.size == (6 * 47, 6 * 31 + 26), "enlarged, so that the caption fits"
        first = np.asarray(image.convert("RGB"))
        image.seek(3)
        assert image.info["duration"] == 100
        later = np.asarray(image.convert("RGB"))
    assert first[40, 10].tolist() == [0, 0, 0]
    assert abs(int(later[40, 10, 0]) - 120) <= 2, "as near as the colors of a GIF get"


@pytest.mark.full
def test_a_failing_video_leaves_no_file(tmp_path: Path) -> None:
    algorithm = A2C(**SMALL)
    env = make("drawn_envs:Drawn", EnvOptions(env_args='{"picture": "none"}', env_mode="serial"))
    with pytest.raises(ConfigError):
        write_video(play(algorithm, env, untrained(algorithm, env)), tmp_path / "video.gif")
    assert not list(tmp_path.iterdir())


def test_image_observations() -> None:
    color = np.zeros((8, 6, 3), np.uint8)
    color[0, 0] = (1, 2, 3)
    for space, observation in (
        (Box(0, 255, (8, 6, 3), "uint8"), color),
        (Box(0, 255, (3, 8, 6), "uint8"), np.moveaxis(color, -1, 0)),
        (Box(0, 255, (2, 8, 6, 3), "uint8"), np.stack([color * 0, color])),
    ):
        image = observation_image(space, observation)
        assert image is not None
        assert image[0, 0].tolist() == [1, 2, 3]
    grey = observation_image(
        Box(0, 255, (4, 8, 6), "uint8"), np.stack([np.full((8, 6), i, np.uint8) for i in range(4)])
    )
    assert grey is not None
    assert grey[0, 0].tolist() == [3, 3, 3], "the latest of four"
    assert observation_image(Box(-1, 1, (4,)), np.zeros(4)) is None


@pytest.mark.parametrize("side", [10, 84, 263, 600])
def test_captions_fit_small_pictures(side: int) -> None:
    frame = Frame(np.full((side, side, 3), 7, np.uint8), episode=9, step=1_000, total=-1234.5, last=True)
    picture = captioned(frame)
    paper = picture[0, 0]
    ink = np.flatnonzero((picture[:CAPTION] != paper).any(axis=(0, 2)))
    assert 0 < ink.max() < picture.shape[1] - 8, "nothing is cut off on the right"
    assert (picture[CAPTION : CAPTION + side, :side] == 7).all()
    assert picture.shape[1] - picture.shape[1] % side in (picture.shape[1], picture.shape[1] - 1), "a whole multiple"

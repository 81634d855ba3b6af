"""Renders JAX environments from their state, on the CPU and with Pillow only."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fragmenta.envs.base import Environment
from fragmenta.envs.classic import Acrobot, CartPole, MountainCar, Pendulum
from fragmenta.envs.particles import ParticleTeam, SimpleTag
from fragmenta.envs.stack import Stack
from fragmenta.errors import ConfigError
from fragmenta_core.spaces import Box

Color = tuple[int, int, int]
PAPER, INK, FAINT = (250, 249, 246), (45, 48, 56), (205, 207, 212)
BLUE, ORANGE, GREEN, RED = (52, 101, 164), (214, 126, 44), (78, 154, 84), (196, 62, 62)
PALETTE = (BLUE, ORANGE, GREEN, RED, (128, 90, 160), (92, 170, 190), (220, 180, 60), (150, 110, 80))
FINER = 3
"""Images are drawn this many times larger and then shrunk, which smooths edges."""
SIDE = 320
"""Minimum pixels of the shorter side of an image."""


def pillow() -> tuple[Any, Any, Any]:
    """Pillow's modules for images, drawing and fonts; imported late because only videos need them."""
    from PIL import Image, ImageDraw, ImageFont

    return Image, ImageDraw, ImageFont


class Canvas:
    """An image in the coordinates of an environment: `width` by `height` around a centre, y upwards."""

    def __init__(self, width: float, height: float, center: tuple[float, float] = (0.0, 0.0)) -> None:
        self._scale = FINER * SIDE / min(width, height)
        # Even sides after shrinking, as videos require.
        size = tuple(round(side * self._scale / FINER / 2) * 2 * FINER for side in (width, height))
        self._left, self._top = center[0] - width / 2, center[1] + height / 2
        image, drawing, _ = pillow()
        self._image = image.new("RGB", size, PAPER)
        self._draw = drawing.Draw(self._image)

    def line(self, points: list[tuple[float, float]], color: Color, width: float) -> None:
        """A line through the points with round ends."""
        self._draw.line([self._at(*p) for p in points], color, max(1, round(width * self._scale)), joint="curve")
        for end in (points[0], points[-1]):
            self.disc(*end, width / 2, color)

    def disc(self, x: float, y: float, radius: float, color: Color, edge: Color | None = None) -> None:
        """A filled circle."""
        (x, y), r = self._at(x, y), radius * self._scale
        self._draw.ellipse((x - r, y - r, x + r, y + r), color, edge, FINER)

    def polygon(self, points: list[tuple[float, float]], color: Color) -> None:
        """A filled polygon."""
        self._draw.polygon([self._at(*p) for p in points], color)

    def block(self, x: float, y: float, width: float, height: float, color: Color) -> None:
        """A filled rectangle with round corners, around a centre."""
        (left, top), (right, bottom) = self._at(x - width / 2, y + height / 2), self._at(x + width / 2, y - height / 2)
        self._draw.rounded_rectangle((left, top, right, bottom), min(right - left, bottom - top) / 5, color)

    def pixels(self) -> np.ndarray:
        """The image, as height x width x 3 bytes."""
        return np.asarray(self._image.reduce(FINER))

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return (x - self._left) * self._scale, (self._top - y) * self._scale


def render(env: Environment, state: Any) -> np.ndarray:
    """An image of one environment in that state, as height x width x 3 bytes; ConfigError if it cannot be rendered."""
    if isinstance(env, Stack):
        return render(env.env, state.inner)
    draw = next((draw for kind, (draw, _) in RENDERERS.items() if isinstance(env, kind)), None)
    if draw is not None:
        return draw(env, state)
    image = observation_image(env.observation_space, np.asarray(env.observe(state)))
    if image is None:
        renderable = ", ".join(kind.__name__ for kind in RENDERERS)
        raise ConfigError(
            f"{env.title} cannot be rendered: only {renderable} and environments with image observations can"
        )
    return image


def frames_per_second(env: Environment) -> float:
    """How many steps make a second of the environment's own time; a sensible default if it has none."""
    if isinstance(env, Stack):
        return frames_per_second(env.env)
    return next((rate for kind, (_, rate) in RENDERERS.items() if isinstance(env, kind)), 15.0)


def observation_image(space: Any, observation: np.ndarray) -> np.ndarray | None:
    """An observation as an image: camera bytes unchanged, each layer of a grid in its own colour; otherwise None."""
    if not isinstance(space, Box) or len(space.shape) < 3:
        return None
    latest = observation.reshape(-1, *observation.shape[-3:])[-1]
    if space.is_image:
        if latest.shape[-1] not in (1, 3):  # channels first, or stacked images
            latest = np.moveaxis(latest, 0, -1) if latest.shape[0] == 3 else latest[-1][..., None]
        image = np.broadcast_to(latest, (*latest.shape[:2], 3))
    else:
        image = np.broadcast_to(np.asarray(PAPER, np.uint8), (*latest.shape[:2], 3)).copy()
        for layer in range(latest.shape[-1]):
            image[latest[..., layer] > 0] = PALETTE[layer % len(PALETTE)]
    scale = max(1, SIDE // min(image.shape[:2]))
    return np.ascontiguousarray(image.repeat(scale, 0).repeat(scale, 1), np.uint8)


def _cart_pole(_: CartPole, state: Any) -> np.ndarray:
    canvas, x, theta = Canvas(5.2, 2.6, (0.0, 0.75)), float(state.x), float(state.theta)
    canvas.line([(-2.55, 0.0), (2.55, 0.0)], FAINT, 0.03)
    for limit in (-2.4, 2.4):
        canvas.line([(limit, -0.12), (limit, 0.12)], RED, 0.03)
    canvas.block(x, 0.0, 0.62, 0.3, INK)
    for wheel in (-0.18, 0.18):
        canvas.disc(x + wheel, -0.17, 0.085, INK, PAPER)
    tip = x + 1.3 * math.sin(theta), 0.1 + 1.3 * math.cos(theta)
    canvas.line([(x, 0.1), tip], ORANGE, 0.11)
    canvas.disc(x, 0.1, 0.045, BLUE)
    return canvas.pixels()


def _pendulum(_: Pendulum, state: Any) -> np.ndarray:
    canvas, theta = Canvas(2.6, 2.6), float(state.theta)
    canvas.disc(0.0, 0.0, 1.12, (242, 241, 237), FAINT)
    tip = -math.sin(theta), math.cos(theta)
    canvas.line([(0.0, 0.0), tip], RED, 0.17)
    canvas.disc(0.0, 0.0, 0.05, INK)
    return canvas.pixels()


def _acrobot(_: Acrobot, state: Any) -> np.ndarray:
    canvas, one, both = Canvas(4.8, 4.8), float(state.theta1), float(state.theta1 + state.theta2)
    canvas.line([(-2.4, 1.0), (2.4, 1.0)], GREEN, 0.03)
    elbow = math.sin(one), -math.cos(one)
    tip = elbow[0] + math.sin(both), elbow[1] - math.cos(both)
    canvas.line([(0.0, 0.0), elbow], BLUE, 0.2)
    canvas.line([elbow, tip], ORANGE, 0.16)
    for joint in ((0.0, 0.0), elbow):
        canvas.disc(*joint, 0.06, PAPER)
    return canvas.pixels()


def _mountain_car(_: MountainCar, state: Any) -> np.ndarray:
    canvas, x = Canvas(1.9, 1.3, (-0.3, 0.6)), float(state.position)

    def height(x: float) -> float:
        return 0.45 * math.sin(3 * x) + 0.55

    ground = [(x, height(x)) for x in np.linspace(-1.3, 0.7, 120).tolist()]
    canvas.polygon([(-1.3, -0.2), *ground, (0.7, -0.2)], (233, 232, 226))
    canvas.line(ground, INK, 0.012)
    flag = height(0.5)
    canvas.line([(0.5, flag), (0.5, flag + 0.18)], INK, 0.01)
    canvas.polygon([(0.5, flag + 0.18), (0.5, flag + 0.1), (0.58, flag + 0.14)], RED)
    slope = math.atan(1.35 * math.cos(3 * x))
    along, up = (math.cos(slope), math.sin(slope)), (-math.sin(slope), math.cos(slope))

    def on_car(forward: float, above: float) -> tuple[float, float]:
        return x + forward * along[0] + above * up[0], height(x) + forward * along[1] + above * up[1]

    canvas.polygon([on_car(-0.075, 0.03), on_car(-0.075, 0.075), on_car(0.075, 0.075), on_car(0.075, 0.03)], BLUE)
    canvas.polygon([on_car(-0.045, 0.07), on_car(-0.025, 0.11), on_car(0.025, 0.11), on_car(0.045, 0.07)], BLUE)
    for wheel in (-0.045, 0.045):
        canvas.disc(*on_car(wheel, 0.027), 0.024, INK, PAPER)
    return canvas.pixels()


def _particles(env: ParticleTeam, state: Any) -> np.ndarray:
    """Learning agents in colours, a scripted runner in red, and objects that do not move in grey."""
    world, places = env.original(), np.asarray(state.p_pos)
    view = max(1.5, 0.3 + math.ceil(2 * float(np.abs(places).max())) / 2)  # zoom in steps, or everything seems to move
    canvas = Canvas(2 * view, 2 * view)
    canvas.line([(-1, -1), (-1, 1), (1, 1), (1, -1), (-1, -1)], FAINT, 0.012)
    movers = len(world.agents)
    for i in [*range(movers, len(places)), *range(movers)]:
        learner = BLUE if isinstance(env, SimpleTag) else PALETTE[i % len(PALETTE)]
        color = (150, 152, 158) if i >= movers else learner if i < env.agents else RED
        canvas.disc(float(places[i, 0]), float(places[i, 1]), float(world.rad[i]), color, PAPER)
    return canvas.pixels()


RENDERERS: dict[type[Environment], tuple[Callable[[Any, Any], np.ndarray], float]] = {
    CartPole: (_cart_pole, 50.0),
    Pendulum: (_pendulum, 20.0),
    Acrobot: (_acrobot, 15.0),
    MountainCar: (_mountain_car, 30.0),
    ParticleTeam: (_particles, 10.0),
}
"""How each is drawn, and how many steps make one second of video."""

"""The classic-control environments of Gymnasium as pure JAX, with the same dynamics, rewards and limits."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs.base import Environment
from fragmenta_core.spaces import Box, Discrete


class CartPoleState(NamedTuple):
    """Position and angle with their velocities."""

    x: jax.Array
    x_dot: jax.Array
    theta: jax.Array
    theta_dot: jax.Array


@dataclasses.dataclass(frozen=True)
class CartPole(Environment):
    """CartPole-v1: keep a pole upright on a cart; reward 1 per step, 500 steps at most."""

    max_steps: int = 500

    @property
    def observation_space(self) -> Box:
        return Box(-float("inf"), float("inf"), (4,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def initial(self, key: jax.Array) -> CartPoleState:
        return CartPoleState(*jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05))

    def observe(self, state: CartPoleState) -> jax.Array:
        return jnp.stack(state)

    def advance(
        self, state: CartPoleState, action: jax.Array, key: jax.Array
    ) -> tuple[CartPoleState, jax.Array, jax.Array]:
        gravity, cart, pole, half_length, time_step = 9.8, 1.0, 0.1, 0.5, 0.02
        total = cart + pole
        force = jnp.where(action == 1, 10.0, -10.0)
        cos, sin = jnp.cos(state.theta), jnp.sin(state.theta)
        push = (force + pole * half_length * state.theta_dot**2 * sin) / total
        theta_acc = (gravity * sin - cos * push) / (half_length * (4.0 / 3.0 - pole * cos**2 / total))
        x_acc = push - pole * half_length * theta_acc * cos / total
        state = CartPoleState(
            state.x + time_step * state.x_dot,
            state.x_dot + time_step * x_acc,
            state.theta + time_step * state.theta_dot,
            state.theta_dot + time_step * theta_acc,
        )
        fell = (jnp.abs(state.x) > 2.4) | (jnp.abs(state.theta) > 12 * 2 * jnp.pi / 360)
        return state, jnp.ones(()), fell


class PendulumState(NamedTuple):
    """Angle from upright and angular velocity."""

    theta: jax.Array
    theta_dot: jax.Array


@dataclasses.dataclass(frozen=True)
class Pendulum(Environment):
    """Pendulum-v1: swing up and hold a pendulum with a bounded torque; 200 steps, never terminates."""

    max_steps: int = 200

    @property
    def observation_space(self) -> Box:
        return Box(-8.0, 8.0, (3,))

    @property
    def action_space(self) -> Box:
        return Box(-2.0, 2.0, (1,))

    def initial(self, key: jax.Array) -> PendulumState:
        theta, theta_dot = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return PendulumState(theta * jnp.pi, theta_dot)

    def observe(self, state: PendulumState) -> jax.Array:
        return jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta), state.theta_dot])

    def advance(
        self, state: PendulumState, action: jax.Array, key: jax.Array
    ) -> tuple[PendulumState, jax.Array, jax.Array]:
        gravity, mass, length, time_step = 10.0, 1.0, 1.0, 0.05
        torque = jnp.clip(action[0], -2.0, 2.0)
        cost = _wrap_angle(state.theta) ** 2 + 0.1 * state.theta_dot**2 + 0.001 * torque**2
        acceleration = 3 * gravity / (2 * length) * jnp.sin(state.theta) + 3.0 / (mass * length**2) * torque
        theta_dot = jnp.clip(state.theta_dot + acceleration * time_step, -8.0, 8.0)
        return PendulumState(state.theta + theta_dot * time_step, theta_dot), -cost, jnp.zeros((), bool)


class AcrobotState(NamedTuple):
    """The two joint angles and their velocities."""

    theta1: jax.Array
    theta2: jax.Array
    dtheta1: jax.Array
    dtheta2: jax.Array


@dataclasses.dataclass(frozen=True)
class Acrobot(Environment):
    """Acrobot-v1: swing the end of a two-link arm above a line; reward -1 per step, 500 steps at most."""

    max_steps: int = 500

    @property
    def observation_space(self) -> Box:
        return Box(-9 * math.pi, 9 * math.pi, (6,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(3)

    def initial(self, key: jax.Array) -> AcrobotState:
        return AcrobotState(*jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1))

    def observe(self, state: AcrobotState) -> jax.Array:
        one, two = state.theta1, state.theta2
        return jnp.stack([jnp.cos(one), jnp.sin(one), jnp.cos(two), jnp.sin(two), state.dtheta1, state.dtheta2])

    def advance(
        self, state: AcrobotState, action: jax.Array, key: jax.Array
    ) -> tuple[AcrobotState, jax.Array, jax.Array]:
        torque, dt = action.astype(jnp.float32) - 1.0, 0.2
        y = jnp.stack(state)
        k1 = self._derivative(y, torque)
        k2 = self._derivative(y + dt / 2 * k1, torque)
        k3 = self._derivative(y + dt / 2 * k2, torque)
        k4 = self._derivative(y + dt * k3, torque)
        theta1, theta2, dtheta1, dtheta2 = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        state = AcrobotState(
            _wrap_angle(theta1),
            _wrap_angle(theta2),
            jnp.clip(dtheta1, -4 * jnp.pi, 4 * jnp.pi),
            jnp.clip(dtheta2, -9 * jnp.pi, 9 * jnp.pi),
        )
        above = -jnp.cos(state.theta1) - jnp.cos(state.theta2 + state.theta1) > 1.0
        return state, jnp.where(above, 0.0, -1.0), above

    def _derivative(self, y: jax.Array, torque: jax.Array) -> jax.Array:
        """Angular velocities and accelerations for links of mass, length and inertia 1 (Sutton and Barto's variant)."""
        theta1, theta2, dtheta1, dtheta2 = y
        gravity, center = 9.8, 0.5
        cos2, sin2 = jnp.cos(theta2), jnp.sin(theta2)
        d1 = center**2 + (1.0 + center**2 + 2 * center * cos2) + 2.0
        d2 = center**2 + center * cos2 + 1.0
        phi2 = center * gravity * jnp.cos(theta1 + theta2 - jnp.pi / 2)
        phi1 = (
            -center * dtheta2**2 * sin2
            - 2 * center * dtheta2 * dtheta1 * sin2
            + (center + 1.0) * gravity * jnp.cos(theta1 - jnp.pi / 2)
            + phi2
        )
        ddtheta2 = (torque + d2 / d1 * phi1 - center * dtheta1**2 * sin2 - phi2) / (center**2 + 1.0 - d2**2 / d1)
        ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
        return jnp.stack([dtheta1, dtheta2, ddtheta1, ddtheta2])


class MountainCarState(NamedTuple):
    """Position and velocity along the valley."""

    position: jax.Array
    velocity: jax.Array


@dataclasses.dataclass(frozen=True)
class MountainCar(Environment):
    """MountainCar-v0: rock an underpowered car out of a valley; reward -1 per step, 200 steps at most."""

    max_steps: int = 200

    @property
    def observation_space(self) -> Box:
        return Box(-1.2, 0.6, (2,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(3)

    def initial(self, key: jax.Array) -> MountainCarState:
        return MountainCarState(jax.random.uniform(key, (), minval=-0.6, maxval=-0.4), jnp.zeros(()))

    def observe(self, state: MountainCarState) -> jax.Array:
        return jnp.stack(state)

    def advance(
        self, state: MountainCarState, action: jax.Array, key: jax.Array
    ) -> tuple[MountainCarState, jax.Array, jax.Array]:
        velocity = state.velocity + (action - 1) * 0.001 - jnp.cos(3 * state.position) * 0.0025
        velocity = jnp.clip(velocity, -0.07, 0.07)
        position = jnp.clip(state.position + velocity, -1.2, 0.6)
        velocity = jnp.where((position == -1.2) & (velocity < 0), 0.0, velocity)
        reached = (position >= 0.5) & (velocity >= 0.0)
        return MountainCarState(position, velocity), -jnp.ones(()), reached


def _wrap_angle(angle: jax.Array) -> jax.Array:
    """The same angle between -pi and pi."""
    return (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi

"""Losses and targets for values of actions: categorical (C51) and quantile (QR) distributions, sequences."""

import dataclasses

import jax
import jax.numpy as jnp

from fragmenta.envs import Transition

RETURN_KINDS = ("none", "c51", "quantile")
"""What can be learned of a return: its mean, probabilities on atoms, or quantiles."""

EPSILON = 1e-3
"""The slope of the compressed scale of values, far out."""


def of_action(values: jax.Array, action: jax.Array) -> jax.Array:
    """The value of one action each; actions are the last axis of the values."""
    return outputs_of_action(values[..., None], action)[..., 0]


def outputs_of_action(outputs: jax.Array, action: jax.Array) -> jax.Array:
    """What outputs, whose last axis but one is that of actions, say about one action each."""
    # Not a gather: its derivative is a scatter, which is slow everywhere.
    is_action = action[..., None] == jnp.arange(outputs.shape[-2])
    return jnp.sum(jnp.where(is_action[..., None], outputs, 0.0), axis=-2)


def huber(error: jax.Array) -> jax.Array:
    """Quadratic up to 1, linear beyond."""
    size = jnp.abs(error)
    return jnp.where(size <= 1.0, 0.5 * error**2, size - 0.5)


def project_categorical(support: jax.Array, probability: jax.Array, shifted: jax.Array) -> jax.Array:
    """Probabilities on the atoms of an evenly spaced `support`, of a distribution on the atoms `shifted` instead.

    The atoms are the last axis (Bellemare et al., 2017).
    """
    spacing = support[1] - support[0]
    shifted = jnp.clip(shifted, support[0], support[-1])
    share = jnp.clip(1.0 - jnp.abs(shifted[..., None, :] - support[:, None]) / spacing, 0.0, 1.0)
    return jnp.sum(share * probability[..., None, :], axis=-1)


def quantile_huber(quantiles: jax.Array, targets: jax.Array) -> jax.Array:
    """The loss of quantiles against samples of the target distribution, both on the last axis (Dabney et al., 2018)."""
    count = quantiles.shape[-1]
    fractions = (jnp.arange(count) + 0.5) / count
    error = targets[..., None, :] - quantiles[..., :, None]
    weight = jnp.abs(fractions[:, None] - (error < 0.0))
    return jnp.sum(jnp.mean(weight * huber(error), axis=-1), axis=-1)


@dataclasses.dataclass(frozen=True)
class ReturnForm:
    """What networks say about a return, on the last axis of their outputs: its mean, logits of atoms, or quantiles."""

    kind: str
    atoms: int
    value_range: tuple[float, float]

    @property
    def size(self) -> int:
        """How many numbers that are."""
        return 1 if self.kind == "none" else self.atoms

    @property
    def support(self) -> jax.Array:
        """The returns of the atoms."""
        return jnp.linspace(*self.value_range, self.atoms)

    def mean(self, outputs: jax.Array) -> jax.Array:
        """The expected return."""
        if self.kind == "c51":
            return jnp.sum(jax.nn.softmax(outputs) * self.support, axis=-1)
        return jnp.mean(outputs, axis=-1)

    def errors(
        self, outputs: jax.Array, following: jax.Array, reward: jax.Array, discount: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The loss of every step, whose return is a reward and the discounted one that follows, and its error."""
        if self.kind == "none":
            error = outputs[..., 0] - (reward + discount * following[..., 0])
            # Not Huber's: its bounded gradient corrects values that are far too high too slowly, and they grow.
            return 0.5 * error**2, error
        reward, discount = reward[..., None], discount[..., None]
        if self.kind == "quantile":
            each = quantile_huber(outputs, jax.lax.stop_gradient(reward + discount * following))
            return each, each
        target = project_categorical(self.support, jax.nn.softmax(following), reward + discount * self.support)
        each = -jnp.sum(target * jax.nn.log_softmax(outputs), axis=-1)
        return each, each

    def lowest(self, outputs: jax.Array) -> jax.Array:
        """Of several outputs on the first axis, those with the lowest mean."""
        if self.kind == "none":
            return jnp.min(outputs, axis=0)
        choice = jnp.argmin(self.mean(outputs), axis=0)
        return outputs_of_action(jnp.moveaxis(outputs, 0, -2), choice)

    def average(self, outputs: jax.Array) -> jax.Array:
        """Of several outputs on the first axis, one whose mean is that of their means."""
        if self.kind == "c51":
            return jax.nn.logsumexp(jax.nn.log_softmax(outputs), axis=0)
        return jnp.mean(outputs, axis=0)


def rescaled(value: jax.Array) -> jax.Array:
    """Values on a scale that compresses large ones (Pohlen et al., 2018)."""
    return jnp.sign(value) * (jnp.sqrt(jnp.abs(value) + 1.0) - 1.0) + EPSILON * value


def unscaled(value: jax.Array) -> jax.Array:
    """The inverse of `rescaled`."""
    root = jnp.sqrt(1.0 + 4.0 * EPSILON * (jnp.abs(value) + 1.0 + EPSILON))
    return jnp.sign(value) * (((root - 1.0) / (2.0 * EPSILON)) ** 2 - 1.0)


def returns_within(steps: Transition, next_value: jax.Array, gamma: float, n_step: int) -> jax.Array:
    """The return of every step of a sequence over up to `n_step` steps, as far as it and its episode reach.

    `next_value` is the value of the observation after each step, before any reset.
    """
    relies = steps.reward + gamma * (1.0 - steps.terminated) * next_value
    ended, total = steps.terminated | steps.truncated, relies
    for _ in range(n_step - 1):
        later = jnp.concatenate([steps.reward[:-1] + gamma * total[1:], relies[-1:]])
        total = jnp.where(ended, relies, later)
    return total

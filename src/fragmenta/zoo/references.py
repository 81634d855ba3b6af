"""What others published: the returns that recipes are compared with."""

import functools

from fragmenta.zoo.recipe import Reference

GYMNASIUM = "https://gymnasium.farama.org/environments/classic_control"
CLEANRL = "https://docs.cleanrl.dev/rl-algorithms"
RLLIB = "https://github.com/ray-project/ray/blob/master/rllib/tuned_examples"

CARTPOLE_SOLVED = Reference("Gymnasium", f"{GYMNASIUM}/cart_pole/", 475, note="its reward threshold")

baselines = functools.partial(
    Reference, "RL Baselines3 Zoo", "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md"
)
"""Of Stable-Baselines3: one run, evaluated without exploration."""


def cleanrl(page: str, figure: float, spread: float, steps: int, note: str = "") -> Reference:
    """The mean over three seeds of the return in training, as ours, and their standard deviation."""
    words = f"± {spread:,g}{f', {note}' if note else ''}"
    return Reference("CleanRL", f"{CLEANRL}/{page}/", figure, steps, words)


def gymnax(figure: float, steps: int, note: str) -> Reference:
    """From the table of environments in its README; steps are those of the configurations of gymnax-blines."""
    return Reference("gymnax", "https://github.com/RobertTLange/gymnax#readme", figure, steps, note)


def rllib(example: str, figure: float, steps: int, note: str = "") -> Reference:
    """What a tuned example must reach within so many steps."""
    return Reference("RLlib", f"{RLLIB}/{example}", figure, steps, f"at the latest{f', {note}' if note else ''}")

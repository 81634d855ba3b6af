"""Population-based training (Jaderberg et al., 2017) within one program: the worst rows continue from copies of the
best ones, with changed numbers."""

import dataclasses

import jax
import numpy as np

from fragmenta.errors import ConfigError
from fragmenta.search.program import Row, Training
from fragmenta.search.ranges import Range
from fragmenta.search.trials import Proposal, curve_of
from fragmenta.tracing.iteration import TOTALS
from fragmenta.tracing.jaxprs import key_dtype

EXCHANGES = 20
"""How often members are exchanged during training, at equal intervals."""
SHARE = 4
"""One in this many members is replaced, by a copy of one of equally many best ones."""


def check_population(ranges: dict[str, Range], traced: tuple[str, ...], members: int, seeds: int) -> None:
    """ConfigError if these ranges cannot be searched by a population."""
    fixed = [name for name in ranges if name not in traced]
    if fixed:
        problem = f"method 'pbt' changes values during training, but {fixed[0]} is part of the program"
        raise ConfigError(f"{problem}: search only numbers like learning_rate, or use another method")
    if seeds != 1:
        raise ConfigError(f"seeds is {seeds}, but the members of a population copy each other: use seeds 1 with 'pbt'")
    if members < SHARE:
        raise ConfigError(f"trials is {members}: a population needs at least {SHARE} members")


def next_exchange(iteration: int, iterations: int) -> int:
    """The iteration after which members are exchanged next."""
    every = max(1, iterations // EXCHANGES)
    return min(iterations, (iteration // every + 1) * every)


def exploit_and_explore(
    training: Training, members: list[Proposal], ranges: dict[str, Range], seed: int
) -> list[Proposal]:
    """Replace the worst quarter of the members by changed copies of the best, and return the members with their new
    values. The copies take over state and history; the random keys stay different, since each row keeps its own."""
    random = np.random.default_rng((seed, training.iteration))
    scores = [_score(training, i) for i in range(len(members))]
    order = sorted(range(len(members)), key=lambda i: (-scores[i], i))
    count = len(members) // SHARE
    source = list(range(len(members)))
    members = list(members)
    for loser in order[-count:]:
        winner = order[int(random.integers(count))]
        source[loser] = winner
        values = {
            name: values.moved(members[winner].values[name], bool(random.integers(2)))
            for name, values in ranges.items()
        }
        members[loser] = Proposal(members[loser].number, values)
    places = np.asarray(source)
    training.state = jax.tree.map(lambda leaf: leaf if key_dtype(leaf.dtype) else leaf[places], training.state)
    training.metrics = {name: values[:, places] for name, values in training.metrics.items()}
    template = training.program.template
    training.rows = [
        Row(dataclasses.replace(template, **member.values), row.seed)
        for member, row in zip(members, training.rows, strict=True)
    ]
    training.renumber()
    return members


def _score(training: Training, row: int) -> float:
    if not all(np.isfinite(values[-1, row]).all() for values in training.metrics.values()):
        return -np.inf
    curve = curve_of(*(training.metrics[name][:, row] for name in TOTALS[:2]), steps_per_iteration=1)
    return curve[-1][1] if curve else -np.inf

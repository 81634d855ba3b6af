"""Which trials of a sweep are trained together: those that differ only in traced numbers form one program."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment, EnvOptions
from fragmenta.search.program import SweepProgram
from fragmenta.search.ranges import Range
from fragmenta.search.trials import Proposal
from fragmenta.search.variants import traceable_fields


@dataclasses.dataclass(frozen=True)
class Task:
    """What all trials of a sweep share."""

    algorithm: Algorithm
    env: Any
    """The environment as `make` takes it."""
    env_options: EnvOptions
    seeds: tuple[int, ...]
    population: dict[str, Range] | None = None
    """For population-based training, the ranges in which values may move."""


@dataclasses.dataclass(frozen=True)
class TrialGroup:
    """Trials that differ only in the numbers of the traced fields, or one trial that cannot be part of a program."""

    proposals: tuple[Proposal, ...]
    traced: tuple[str, ...] | None
    """None if the trial is trained as an ordinary run."""

    def split(self, parts: int) -> list["TrialGroup"]:
        """The trials in several groups of about the same size."""
        count = len(self.proposals)
        ends = [count * part // parts for part in range(parts + 1)]
        return [
            TrialGroup(self.proposals[start:end], self.traced) for start, end in itertools.pairwise(ends) if end > start
        ]


class Programs:
    """How the trials of a sweep form groups, and the programs that train these: kept, so that the next batch of trials
    need not trace and compile again."""

    def __init__(self, algorithm: Algorithm, env: Environment) -> None:
        self.algorithm, self._env = algorithm, env
        self._traced: dict[Any, tuple[str, ...] | None] = {}
        self._programs: dict[Any, SweepProgram] = {}

    def groups(self, proposals: Sequence[Proposal]) -> list[TrialGroup]:
        """The proposals in groups, each of which can be one program."""
        groups: list[TrialGroup] = []
        if self._env.host_pool:
            return [TrialGroup((proposal,), None) for proposal in proposals]
        for kind, alike in _alike(proposals, lambda _, value: not isinstance(value, float)):
            if kind not in self._traced:
                names = list(alike[0].values)
                self._traced[kind] = traceable_fields(alike[0].applied(self.algorithm), self._env, names)
            traced = self._traced[kind]
            if traced is None:
                groups += [TrialGroup((proposal,), None) for proposal in alike]
                continue
            parts = _alike(alike, lambda name, _, traced=traced: name not in traced)
            groups += [TrialGroup(tuple(part), traced) for _, part in parts]
        return groups

    def of(self, group: TrialGroup) -> SweepProgram:
        """The program that trains a group."""
        traced = group.traced or ()
        kind = traced, tuple(v for name, v in group.proposals[0].values.items() if name not in traced)
        if kind not in self._programs:
            template = group.proposals[0].applied(self.algorithm)
            self._programs[kind] = SweepProgram(template, traced, self._env)
        return self._programs[kind]


def _alike(
    proposals: Sequence[Proposal], decides: Callable[[str, Any], bool]
) -> list[tuple[tuple[Any, ...], list[Proposal]]]:
    """The proposals by the values that decide."""
    parts: dict[tuple[Any, ...], list[Proposal]] = {}
    for proposal in proposals:
        kind = tuple((name, value) for name, value in proposal.values.items() if decides(name, value))
        parts.setdefault(kind, []).append(proposal)
    return list(parts.items())

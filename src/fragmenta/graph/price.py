"""The overhead of replicating a fragment: what its replicas gather from each other, and the work that all repeat."""

import dataclasses
from collections.abc import Iterable

from fragmenta.graph.exchange import Exchange, Repeated
from fragmenta.graph.ir import Call
from fragmenta.graph.program import Plan, Program
from fragmenta.graph.words import byte_text

SIGNIFICANT_SHARE = 0.03
"""Overhead of at least this share of a fragment's work is reported before a run."""

_ADVICE = {
    "gather": "use one index per environment (jnp.take_along_axis along time)",
    "sort": "sort within each environment",
    "top_k": "select within each environment",
    "random_bits": "draw with one key per environment (fragmenta.rl.keys_by_index, jax.vmap)",
    "threefry2x32": "draw with one key per environment (fragmenta.rl.keys_by_index, jax.vmap)",
    "scatter": "keep one ring buffer per environment and write with one index per environment",
    "dynamic_update_slice": "keep one ring buffer per environment, so that every write covers all environments",
    "cumsum": "accumulate along time, not along environments",
}
_SAME_ADVICE = {
    "random_bits": ("uniform", "normal", "categorical", "bernoulli", "randint", "gumbel", "_uniform", "_normal_real")
}
_ADVICE |= {name: _ADVICE[kind] for kind, names in _SAME_ADVICE.items() for name in names}
_ADVICE |= dict.fromkeys(("_shuffle", "permutation", "argsort", "_take"), _ADVICE["gather"])


@dataclasses.dataclass(frozen=True)
class Price:
    """The overhead of one operation of a fragment that comes from replication."""

    fragment: str
    operation: str
    line: str
    bytes: int
    """Bytes gathered from other replicas per iteration, over all replicas."""
    share: float
    """The overhead as a share of the work of one replica."""
    advice: str
    """What to write instead, or empty."""

    @property
    def is_significant(self) -> bool:
        """Whether it is worth reporting before a run."""
        return self.share >= SIGNIFICANT_SHARE

    def __str__(self) -> str:
        at = f" ({self.line})" if self.line else ""
        parts = [f"gathers {byte_text(self.bytes)} per iteration for {self.operation}{at}"] if self.bytes else []
        if not self.bytes:
            parts.append(f"every replica computes all of {self.operation}{at}, {self.share:.0%} of its work")
        return f"{self.fragment}: {parts[0]}" + (f"; instead, {self.advice}" if self.advice else "")


def prices(plan: Plan) -> list[Price]:
    """All prices of a plan, by fragment, the largest first."""
    return [price for program in plan.programs if program.fragment.replicas > 1 for price in _prices(program)]


def repeated_share(program: Program) -> float:
    """The share of a replica's work that every other replica repeats."""
    total, repeated = _amounts(program)
    return repeated / total if total else 0.0


def whole_stages(program: Program) -> list[str]:
    """Stages that every replica computes almost in full."""
    stages = []
    for run, _ in program.runs():
        if isinstance(run.node, Call) and run.node.share:
            work = run.node.share.work
            if (
                work.repeated_amount > 10 * work.shared_out
                and work.repeated_amount > SIGNIFICANT_SHARE * _amounts(program)[0]
            ):
                stages.append(run.node.stage)
    return list(dict.fromkeys(stages))


def _prices(program: Program) -> list[Price]:
    total, _ = _amounts(program)
    replicas = program.fragment.replicas
    overheads = []
    for (operation, line), group in _grouped(e for e in program.exchanges() if e.kind == "gather"):
        size = sum(e.bytes * e.times for e in group) * (replicas - 1)
        # A byte that crosses costs at least about as much as an addition.
        overheads.append(
            Price(program.fragment.name, operation, line, size, size / max(total, 1), _ADVICE.get(operation, ""))
        )
    repeated = [
        one for run, times in program.runs() if run.node.share for one in run.node.share.work.times(times).repeated
    ]
    for (operation, line), group in _grouped(repeated):
        share = sum(one.amount for one in group) / max(total, 1)
        if share >= SIGNIFICANT_SHARE:
            overheads.append(Price(program.fragment.name, operation, line, 0, share, _ADVICE.get(operation, "")))
    return sorted(overheads, key=lambda price: -price.share)


def _amounts(program: Program) -> tuple[float, float]:
    """The work of one replica, and how much of it every other replica repeats."""
    works = [run.node.share.work.times(times) for run, times in program.runs() if run.node.share]
    repeated = sum(work.repeated_amount for work in works)
    return sum(work.shared_out for work in works) / program.fragment.replicas + repeated, repeated


def _grouped(items: Iterable[Exchange | Repeated]) -> list[tuple[tuple[str, str], list]]:
    groups: dict[tuple[str, str], list] = {}
    for item in items:
        groups.setdefault((item.operation, item.line), []).append(item)
    return list(groups.items())

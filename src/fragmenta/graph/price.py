"""What it costs that a fragment is replicated: what its replicas gather from each other, and what each does alike."""

import dataclasses
from collections.abc import Iterable

from fragmenta.graph.exchange import Exchange, Repeated
from fragmenta.graph.ir import Call
from fragmenta.graph.program import Plan, Program
from fragmenta.graph.words import byte_text

NOTICED = 0.03
"""From this share of a fragment's work on, a price is named before a run."""

_ADVICE = {
    "gather": "take by one index per environment (jnp.take_along_axis along time)",
    "sort": "order each environment's own entries",
    "top_k": "choose among each environment's own entries",
    "random_bits": "draw with one key per environment (fragmenta.rl.keys_by_index, jax.vmap)",
    "threefry2x32": "draw with one key per environment (fragmenta.rl.keys_by_index, jax.vmap)",
    "scatter": "keep one ring per environment and write with one index per environment",
    "dynamic_update_slice": "keep one ring per environment: the environments' dimension whole in every write",
    "cumsum": "accumulate along time, not along the environments",
}
_SAME = {
    "random_bits": ("uniform", "normal", "categorical", "bernoulli", "randint", "gumbel", "_uniform", "_normal_real")
}
_ADVICE |= {name: _ADVICE[kind] for kind, names in _SAME.items() for name in names}
_ADVICE |= dict.fromkeys(("_shuffle", "permutation", "argsort", "_take"), _ADVICE["gather"])


@dataclasses.dataclass(frozen=True)
class Price:
    """One operation of one fragment that costs something because it is replicated."""

    fragment: str
    operation: str
    line: str
    bytes: int
    """Gathered from other replicas, per iteration and over all of them."""
    share: float
    """Of all that the fragment computes per replica: what this takes because every replica does all of it."""
    advice: str
    """What to write instead, if something is known to help."""

    @property
    def is_noticed(self) -> bool:
        """Whether it is more than a few percent."""
        return self.share >= NOTICED

    def __str__(self) -> str:
        at = f" ({self.line})" if self.line else ""
        parts = [f"gathers {byte_text(self.bytes)} per iteration for {self.operation}{at}"] if self.bytes else []
        if not self.bytes:
            parts.append(f"every replica does all of {self.operation}{at}, {self.share:.0%} of its work")
        return f"{self.fragment}: {parts[0]}" + (f"; instead, {self.advice}" if self.advice else "")


def prices(plan: Plan) -> list[Price]:
    """All prices of a plan, the greatest of each fragment first."""
    return [price for program in plan.programs if program.fragment.replicas > 1 for price in _prices(program)]


def repeated_share(program: Program) -> float:
    """Which part of what a replica computes every other one computes as well."""
    total, repeated = _amounts(program)
    return repeated / total if total else 0.0


def whole_stages(program: Program) -> list[str]:
    """Stages of which every replica does practically all."""
    found = []
    for run, _ in program.runs():
        if isinstance(run.node, Call) and run.node.share:
            work = run.node.share.work
            if work.repeated_amount > 10 * work.shared_out and work.repeated_amount > NOTICED * _amounts(program)[0]:
                found.append(run.node.stage)
    return list(dict.fromkeys(found))


def _prices(program: Program) -> list[Price]:
    total, _ = _amounts(program)
    replicas = program.fragment.replicas
    found = []
    for (operation, line), group in _grouped(e for e in program.exchanges() if e.kind == "gather"):
        size = sum(e.bytes * e.times for e in group) * (replicas - 1)
        # A byte that crosses costs about as much as an addition, at the least.
        found.append(
            Price(program.fragment.name, operation, line, size, size / max(total, 1), _ADVICE.get(operation, ""))
        )
    repeated = [
        one for run, times in program.runs() if run.node.share for one in run.node.share.work.times(times).repeated
    ]
    for (operation, line), group in _grouped(repeated):
        share = sum(one.amount for one in group) / max(total, 1)
        if share >= NOTICED:
            found.append(Price(program.fragment.name, operation, line, 0, share, _ADVICE.get(operation, "")))
    return sorted(found, key=lambda price: -price.share)


def _amounts(program: Program) -> tuple[float, float]:
    """What a replica computes in all, and how much of it every other one does as well."""
    works = [run.node.share.work.times(times) for run, times in program.runs() if run.node.share]
    repeated = sum(work.repeated_amount for work in works)
    return sum(work.shared_out for work in works) / program.fragment.replicas + repeated, repeated


def _grouped(items: Iterable[Exchange | Repeated]) -> list[tuple[tuple[str, str], list]]:
    groups: dict[tuple[str, str], list] = {}
    for item in items:
        groups.setdefault((item.operation, item.line), []).append(item)
    return list(groups.items())

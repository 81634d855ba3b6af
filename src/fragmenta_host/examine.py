"""Examines an environment in a temporary process: its spaces, the duration of a step, its package's own checker."""

from fragmenta_core.arrays import Description
from fragmenta_core.faults import EnvironmentFaultError, Fault, UnusableError, fault_from
from fragmenta_host.catalogue import Spec, sample, vector_class
from fragmenta_host.env_process import EnvProcess, GoneError

EXAMINE_SECONDS = 10.0
"""Time limit for measuring the duration of a step."""


def describe(spec: Spec, timeout: float, measures: bool) -> tuple[Description, float]:
    """The environment's description, and the seconds that a step takes: 0 if not measured."""
    if spec.is_vector:
        return vector_class(spec).describe(spec.name, spec.arguments, spec.stack), 0.0
    if spec.bound_here:
        return _describe_here(spec), 0.0
    process = EnvProcess()
    try:
        description = _describe(process, spec, timeout)
        return description, _measure(process, min(timeout, EXAMINE_SECONDS)) if measures else 0.0
    finally:
        process.close()


def complaints(spec: Spec, timeout: float) -> list[str]:
    """The complaints of the package's own checker."""
    if spec.is_vector or spec.bound_here:
        return []
    process = EnvProcess()
    try:
        return process.order({"order": "check", "spec": spec.to_json()}, timeout)["complaints"]
    except GoneError as gone:
        return [f"the package's own checker {gone}"]
    finally:
        process.close()


def _describe_here(spec: Spec) -> Description:
    try:
        env = sample(spec)
    except UnusableError:
        raise
    except Exception as error:
        raise EnvironmentFaultError(str(spec), fault_from(0, "construction", error), 0, "") from None
    env.close()
    return env.description


def _describe(process: EnvProcess, spec: Spec, timeout: float) -> Description:
    try:
        reply = process.order({"order": "describe", "spec": spec.to_json()}, timeout)
    except GoneError as gone:
        raise EnvironmentFaultError(str(spec), Fault(0, f"construction {gone}"), 0, "") from None
    if "unusable" in reply:
        raise UnusableError(reply["unusable"])
    for fault in reply.get("faults", ()):
        raise EnvironmentFaultError(str(spec), Fault(**fault), 0, "")
    return Description.from_json(reply["description"])


def _measure(process: EnvProcess, timeout: float) -> float:
    """The duration of one step; the maximum if it fails, because such environments are best kept in processes."""
    try:
        return process.order({"order": "measure"}, timeout).get("step_seconds", EXAMINE_SECONDS)
    except GoneError:
        return EXAMINE_SECONDS

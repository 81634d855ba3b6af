"""Sinks for metrics besides JSON lines: TensorBoard, Weights & Biases, MLflow. Each is imported only when used."""

import importlib.util
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fragmenta.errors import ConfigError, load, unknown

PROJECT = "fragmenta"
"""The project or experiment under which runs are listed."""

LAST = ("iteration", "steps", "seconds", "dropped")
"""Cumulative numbers: of several records, the last value is taken."""
PER_EPISODE = ("return_mean", "length_mean")
"""Means over an iteration's episodes: weighted by the number of episodes."""
TAGS = {
    "episodes": "episode/count",
    "return_mean": "episode/return",
    "length_mean": "episode/length",
    "steps_per_second": "speed/steps_per_second",
    "steps_per_second_overall": "speed/steps_per_second_overall",
    "lag": "speed/lag",
    "dropped": "speed/dropped",
    "memory_mb": "memory/resident_mb",
    "device_memory_mb": "memory/device_mb",
}
"""Grouped names of scalars; any other metric of an algorithm is a loss."""


class Sink(Protocol):
    """Receives points: scalars by name, at a number of environment steps. All calls come from one thread."""

    def write(self, scalars: dict[str, float], steps: int) -> None:
        """Add one point."""
        ...

    def close(self) -> None:
        """Finish and release resources."""
        ...


class TensorBoard:
    """An event file in `RUN/tensorboard`."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        # Not SummaryWriter: it writes in its own thread, whose failure goes unnoticed until a full queue blocks.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        folder = directory / "tensorboard"
        folder.mkdir(exist_ok=True)
        self._event, self._summary, self._value = Event, Summary, Summary.Value
        self._writer = EventsWriter(str(folder / "events"))

    def write(self, scalars: dict[str, float], steps: int) -> None:
        """One event with all scalars, which is many times faster than one event each."""
        values = [self._value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._writer.write_event(self._event(wall_time=time.time(), step=steps, summary=self._summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandB:
    """A Weights & Biases run; environment variables such as WANDB_MODE=offline say where it goes."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._run = wandb.init(project=PROJECT, name=directory.name, dir=str(directory.absolute()), config=config)

    def write(self, scalars: dict[str, float], steps: int) -> None:
        """One step of the run."""
        self._run.log(scalars, step=steps)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MLflow:
    """An MLflow run; MLFLOW_TRACKING_URI says where it goes."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        self._mlflow = mlflow
        mlflow.set_experiment(PROJECT)
        mlflow.start_run(run_name=directory.name)
        mlflow.log_params(flat(config))

    def write(self, scalars: dict[str, float], steps: int) -> None:
        """One point of every metric."""
        # MLflow rejects other characters in names, such as the arrow between two fragments.
        named = {re.sub(r"[^\w\-. /]", "_", name.replace("->", "to")): value for name, value in scalars.items()}
        self._mlflow.log_metrics(named, step=steps)

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


SINKS: dict[str, tuple[str, type[TensorBoard] | type[WandB] | type[MLflow]]] = {
    "tensorboard": ("tensorboardX", TensorBoard),
    "wandb": ("wandb", WandB),
    "mlflow": ("mlflow", MLflow),
}
"""By name: the package that a sink needs, and its class."""


def check_sinks(names: Sequence[str]) -> None:
    """Raise ConfigError if a sink is unknown or its package is missing; imports nothing."""
    for name in names:
        if ":" in name:
            _own_sink(name)
            continue
        if name not in SINKS:
            raise unknown("sink", name, [*SINKS, "none"], ", or module:Class for your own")
        package = SINKS[name][0]
        if importlib.util.find_spec(package) is None:
            wanted = "fragmenta" if name == "tensorboard" else f"fragmenta[{name}]"
            raise ConfigError(f"sink '{name}' needs the package {package}: pip install '{wanted}'")


def open_sink(name: str, directory: Path, config: dict[str, Any]) -> Sink:
    """The sink of that name, or of the class at `module:Class`, for a run in that directory."""
    kind = _own_sink(name) if ":" in name else SINKS[name][1]
    return kind(directory, config)


def _own_sink(path: str) -> Callable[[Path, dict[str, Any]], Sink]:
    kind = load("sink", path)
    missing = [method for method in ("write", "close") if not callable(getattr(kind, method, None))]
    if missing:
        raise ConfigError(f"sink '{path}' has no method {missing[0]}: implement write(scalars, steps) and close()")
    return kind


def parse_sinks(text: str) -> tuple[str, ...]:
    """Names from a comma-separated list; `none` means no sink."""
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    return () if names == ("none",) else names


def point(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Combine the records of several iterations into one point: means, or last values and totals for counters."""
    scalars = {}
    for name in dict.fromkeys(name for record in records for name in record):
        matches = [record for record in records if _is_number(record.get(name))]
        if not matches or name in ("iteration", "steps", "seconds"):
            continue
        if name in LAST:
            value = matches[-1][name]
        elif name == "episodes":
            value = sum(record[name] for record in matches)
        else:
            weights = [record["episodes"] if name in PER_EPISODE else 1 for record in matches]
            value = sum(weight * record[name] for weight, record in zip(weights, matches, strict=True)) / sum(weights)
        scalars[_tag(name)] = float(value)
    return scalars


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names."""
    flattened: dict[str, Any] = {}
    for name, value in config.items():
        flattened |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flattened


def _tag(name: str) -> str:
    if name.startswith("busy/"):
        return name.replace("busy/", "time/", 1)
    if "/" in name:
        return name
    return TAGS.get(name, f"loss/{name.removesuffix('_loss')}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

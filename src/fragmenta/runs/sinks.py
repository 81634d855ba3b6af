"""Where metrics go besides JSON lines: TensorBoard, Weights & Biases, MLflow. Each is imported only when it is used."""

import importlib.util
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from fragmenta.errors import ConfigError, unknown

PROJECT = "fragmenta"
"""The project or experiment under which runs are listed."""

LAST = ("iteration", "steps", "seconds", "dropped")
"""Numbers that only grow: of several records, the last one's counts."""
PER_EPISODE = ("return_mean", "length_mean")
"""Means over an iteration's episodes: each weighs as many as there were."""
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
"""Names of scalars by group; what an algorithm reports of its own is a loss."""


class Sink(Protocol):
    """Takes points: scalars by name, at a number of environment steps. All calls come from one thread."""

    def write(self, scalars: dict[str, float], steps: int) -> None:
        """Add one point."""
        ...

    def close(self) -> None:
        """Finish what was begun."""
        ...


class TensorBoard:
    """An event file in `RUN/tensorboard`."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        # Not SummaryWriter: it writes in a thread of its own, whose failure nobody sees until a full queue blocks.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        folder = directory / "tensorboard"
        folder.mkdir(exist_ok=True)
        self._event, self._summary, self._value = Event, Summary, Summary.Value
        self._writer = EventsWriter(str(folder / "events"))

    def write(self, scalars: dict[str, float], steps: int) -> None:
        """One event with all scalars, which is many times quicker than an event for each."""
        values = [self._value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._writer.write_event(self._event(wall_time=time.time(), step=steps, summary=self._summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases; its own variables, such as WANDB_MODE=offline, say where it goes."""

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
    """A run of MLflow; MLFLOW_TRACKING_URI says where it goes."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        self._mlflow = mlflow
        mlflow.set_experiment(PROJECT)
        mlflow.start_run(run_name=directory.name)
        mlflow.log_params(flat(config))

    def write(self, scalars: dict[str, float], steps: int) -> None:
        """One point of every metric."""
        # MLflow refuses other characters in names, among them the arrow from one fragment to another.
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
"""By name, the package that each needs and what writes to it."""


def check_sinks(names: Sequence[str]) -> None:
    """Raise ConfigError if a sink is unknown or its package is missing; imports nothing."""
    for name in names:
        if name not in SINKS:
            raise unknown("sink", name, [*SINKS, "none"])
        package = SINKS[name][0]
        if importlib.util.find_spec(package) is None:
            extra = "" if name == "tensorboard" else f"[{name}]"
            raise ConfigError(f"sink '{name}' needs the package {package}: install fragmenta{extra}")


def parse_sinks(text: str) -> tuple[str, ...]:
    """Names from a list with commas; `none` is no sink at all."""
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    return () if names == ("none",) else names


def point(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Several iterations' records as one point of scalars by group: means, but totals of what counts up."""
    scalars = {}
    for name in dict.fromkeys(name for record in records for name in record):
        found = [record for record in records if _is_number(record.get(name))]
        if not found or name in ("iteration", "steps", "seconds"):
            continue
        if name in LAST:
            value = found[-1][name]
        elif name == "episodes":
            value = sum(record[name] for record in found)
        else:
            weights = [record["episodes"] if name in PER_EPISODE else 1 for record in found]
            value = sum(weight * record[name] for weight, record in zip(weights, found, strict=True)) / sum(weights)
        scalars[_tag(name)] = float(value)
    return scalars


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def _tag(name: str) -> str:
    if name.startswith("busy/"):
        return name.replace("busy/", "time/", 1)
    if "/" in name:
        return name
    return TAGS.get(name, f"loss/{name.removesuffix('_loss')}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

"""Sinks for metrics besides JSON lines: TensorBoard, Weights & Biases, MLflow. Each is imported only when used."""

import dataclasses
import importlib.util
import math
import re
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fragmenta.errors import ConfigError, load_named, unknown

VIDEO = "evaluation/video"

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


LISTING = ("wandb", "mlflow")
"""The sinks that list runs by project, name and tags."""


@dataclasses.dataclass(frozen=True)
class TrackingOptions:
    """How wandb and MLflow list the run."""

    project: str = "fragmenta"
    """The project of wandb, and the experiment of MLflow."""
    run_name: str | None = None
    """The name of the run there. Default: that of the run directory."""
    tags: tuple[str, ...] = ()
    """Tags by which to find it."""

    def check(self, sinks: Sequence[str]) -> None:
        """Raise ConfigError if something is set that none of the sinks reads."""
        given = [field.name for field in dataclasses.fields(self) if getattr(self, field.name) != field.default]
        if given and not any(name in LISTING or ":" in name for name in sinks):
            problem = f"{given[0]} is {getattr(self, given[0])!r}, but no sink lists runs by it"
            raise ConfigError(f"{problem}: add {' or '.join(f'--sinks {name}' for name in LISTING)}")

    @staticmethod
    def of(config: dict[str, Any]) -> "TrackingOptions":
        """Those of a run, from its configuration."""
        stored = config.get("tracking", {})
        return TrackingOptions(**stored | {"tags": tuple(stored.get("tags", ()))})


class Sink(Protocol):
    """Receives points: scalars by name, at a number of environment steps; those of an evaluation come when it ends,
    after points of later steps. All calls come from one thread. A sink may also have `write_video(path, steps)`."""

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

    def write_video(self, path: Path, steps: int) -> None:
        """The GIF as an image, which TensorBoard animates."""
        content = path.read_bytes()
        width, height = struct.unpack("<HH", content[6:10])
        image = self._summary.Image(width=width, height=height, colorspace=3, encoded_image_string=content)
        summary = self._summary(value=[self._value(tag=VIDEO, image=image)])
        self._writer.write_event(self._event(wall_time=time.time(), step=steps, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandB:
    """A Weights & Biases run; environment variables such as WANDB_MODE=offline say where it goes."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        tracking = TrackingOptions.of(config)
        self._video = wandb.Video
        self._run = wandb.init(
            project=tracking.project,
            name=tracking.run_name or directory.name,
            tags=list(tracking.tags),
            dir=str(directory.absolute()),
            config=config,
        )
        # Not wandb's own step, which may only grow: the points of an evaluation come late.
        self._run.define_metric("*", step_metric="steps")

    def write(self, scalars: dict[str, float], steps: int) -> None:
        """One point of the run, drawn against `steps`."""
        self._run.log({**scalars, "steps": steps})

    def write_video(self, path: Path, steps: int) -> None:
        """A video of the run."""
        self._run.log({VIDEO: self._video(str(path)), "steps": steps})

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MLflow:
    """An MLflow run; MLFLOW_TRACKING_URI says where it goes."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        self._mlflow = mlflow
        tracking = TrackingOptions.of(config)
        mlflow.set_experiment(tracking.project)
        mlflow.start_run(run_name=tracking.run_name or directory.name, tags=dict.fromkeys(tracking.tags, ""))
        mlflow.log_params(flat(config))

    def write(self, scalars: dict[str, float], steps: int) -> None:
        """One point of every metric."""
        # MLflow rejects other characters in names, such as the arrow between two fragments.
        named = {re.sub(r"[^\w\-. /]", "_", name.replace("->", "to")): value for name, value in scalars.items()}
        self._mlflow.log_metrics(named, step=steps)

    def write_video(self, path: Path, steps: int) -> None:
        """An artifact of the run."""
        self._mlflow.log_artifact(str(path), "videos")

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
            extra = "fragmenta" if name == "tensorboard" else f"fragmenta[{name}]"
            raise ConfigError(f"sink '{name}' needs the package {package}: pip install '{extra}'")


def open_sink(name: str, directory: Path, config: dict[str, Any]) -> Sink:
    """The sink of that name, or of the class at `module:Class`, for a run in that directory."""
    kind = _own_sink(name) if ":" in name else SINKS[name][1]
    return kind(directory, config)


def _own_sink(path: str) -> Callable[[Path, dict[str, Any]], Sink]:
    kind = load_named("sink", path)
    missing = [method for method in ("write", "close") if not callable(getattr(kind, method, None))]
    if missing:
        raise ConfigError(f"sink '{path}' has no method {missing[0]}: implement write(scalars, steps) and close()")
    return kind


def parse_sinks(text: str) -> tuple[str, ...]:
    """Names from a comma-separated list; `none` means no sink."""
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    if "none" in names and len(names) > 1:
        raise ConfigError(f"sinks is '{text}', but none means no sink at all: leave it out, or the others")
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


def evaluation_point(record: dict[str, Any]) -> dict[str, float]:
    """The scalars of an evaluation; none if it failed."""
    names = {"return_mean": "evaluation/return", "length_mean": "evaluation/length"}
    return {tag: float(record[name]) for name, tag in names.items() if _is_number(record.get(name))}


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

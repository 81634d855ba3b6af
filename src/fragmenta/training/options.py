"""The options of a run, grouped as on the command line."""

import dataclasses
from typing import Literal

from fragmenta.engines import EngineOptions
from fragmenta.envs import EnvOptions
from fragmenta.errors import ConfigError
from fragmenta.evaluation.periodic import EvaluationOptions
from fragmenta.runs.saving import SaveOptions
from fragmenta.runs.sinks import TrackingOptions, check_sinks


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How a run creates its environments, places its processes, saves, evaluates and logs."""

    env: EnvOptions = dataclasses.field(default_factory=EnvOptions)
    engine: EngineOptions = dataclasses.field(default_factory=EngineOptions)
    saving: SaveOptions = dataclasses.field(default_factory=SaveOptions)
    evaluation: EvaluationOptions = dataclasses.field(default_factory=EvaluationOptions)
    sinks: tuple[str, ...] = ("tensorboard",)
    """Where metrics go besides `metrics.jsonl`: tensorboard, wandb, mlflow, or `module:Class`."""
    tracking: TrackingOptions = dataclasses.field(default_factory=TrackingOptions)
    merge: bool = True
    """Merge fragments and replicas that share a device."""
    deadline: float = 300.0
    """Timeout in seconds for one fragment to wait for another, and for a process to compile."""
    timeline: bool = False
    """Record some iterations in `trace.pftrace` and `timings.json`."""
    kernels: Literal["on", "off"] = "off"
    """On an NVIDIA GPU, run what treats all environments or samples alike as generated kernels where
    that is measured to be faster."""
    replan: bool = False
    """Change the plan, which the planner chose, if training is more than 30% slower than it predicted."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot be used."""
        if not self.deadline > 0:  # NaN is not
            raise ConfigError(f"deadline is {self.deadline}: it must be more than 0 seconds")
        self.engine.check()
        self.saving.check()
        self.evaluation.check()
        check_sinks(self.sinks)

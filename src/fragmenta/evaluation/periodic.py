"""Evaluate periodically in the background during training."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.evaluation.background import BackgroundEvaluation, video_name
from fragmenta.runs.checkpoints import Checkpoint
from fragmenta.runs.run_directory import EVALUATIONS, VIDEOS


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
    """When to evaluate the policy during training."""

    eval_every: int = 0
    """Iterations between evaluations with the most likely actions, besides one at the end; 0 for none at all."""
    eval_episodes: int = 16
    """Episodes per evaluation."""
    eval_video: bool = False
    """Record the first episode of each evaluation (of the first seed): a GIF in `videos` of the run, and the sinks."""

    def check(self) -> None:
        """Raise ConfigError for values out of range."""
        if self.eval_every < 0:
            raise ConfigError(f"eval_every is {self.eval_every}: it must be 0 or more")
        if self.eval_episodes < 1:
            raise ConfigError(f"eval_episodes is {self.eval_episodes}: it must be at least 1")
        if self.eval_video and not self.eval_every:
            raise ConfigError("eval_video records evaluations, but eval_every is 0: say how often to evaluate")


class PeriodicEvaluation:
    """Evaluates every few iterations and appends the results to a run's evaluations.jsonl.

    A failed evaluation is recorded there with its error, and the first failure is printed; training continues.
    """

    def __init__(
        self,
        run: Path,
        options: EvaluationOptions,
        algorithm: Algorithm,
        env: Environment,
        seed: int,
        rate: Callable[[Checkpoint, float], None],
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        self.every, self._run = options.eval_every, run
        videos = run / VIDEOS if options.eval_video else None
        self._background = BackgroundEvaluation(algorithm, env, options.eval_episodes, seed, True, videos)
        self._rate, self._report = rate, report
        """Called with the state that was evaluated and its mean return, and with the record."""
        self._evaluated: dict[int, Checkpoint] = {}
        self._latest: int | None = None
        """The steps of the state that was evaluated last."""
        self._has_failed = False
        self._records: list[dict[str, Any]] = []

    def consider(self, checkpoint: Checkpoint, params: Any) -> None:
        """Write finished evaluations, and start another of this state if one is due."""
        self._write(wait=False)
        if checkpoint.iteration % self.every == 0:
            self._submit(checkpoint, params)

    def finish(self, checkpoint: Checkpoint, params: Any) -> None:
        """Wait for the evaluation that is running, then evaluate the final state, unless it was that one."""
        self._write(wait=True)
        if checkpoint.steps != self._latest:
            self._submit(checkpoint, params)
            self._write(wait=True)

    def written(self) -> list[dict[str, Any]]:
        """The records written since the last call."""
        records, self._records = self._records, []
        return records

    def __enter__(self) -> "PeriodicEvaluation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._write(wait=True)
        finally:
            self._background.close()

    def _submit(self, checkpoint: Checkpoint, params: Any) -> None:
        if self._background.submit(params, checkpoint.steps):
            self._evaluated[checkpoint.steps] = checkpoint
            self._latest = checkpoint.steps

    def _write(self, wait: bool) -> None:
        for steps, result in self._background.finished(wait):
            checkpoint = self._evaluated.pop(steps)
            if isinstance(result, BaseException):
                values = self._failed(result, steps)
            else:
                values = result.as_record()
                self._rate(checkpoint, result.mean)
            record = {"iteration": checkpoint.iteration, "steps": steps} | values
            if (video := self._run / VIDEOS / video_name(steps)).exists():
                record["video"] = str(video.relative_to(self._run))
            self._records.append(record)
            self._report(record)
            try:
                with open(self._run / EVALUATIONS, "a") as file:
                    file.write(json.dumps(record) + "\n")
            except OSError as error:  # must not end the run
                print(f"fragmenta: an evaluation could not be written: {error.strerror}", file=sys.stderr)

    def _failed(self, error: BaseException, steps: int) -> dict[str, Any]:
        reason = " ".join(str(error).split()) or type(error).__name__
        if not self._has_failed:
            advice = "training continues; later failures are only recorded in evaluations.jsonl"
            print(f"fragmenta: the evaluation after {steps:,} steps failed: {reason}; {advice}", file=sys.stderr)
        self._has_failed = True
        return {"failed": reason}

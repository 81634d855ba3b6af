"""Evaluate now and then while training goes on, which it does not disturb."""

import dataclasses
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.evaluation.evaluate import BackgroundEvaluation, Evaluation


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
    """When a policy is evaluated while it is trained."""

    eval_every: int = 0
    """Iterations between evaluations, by the likeliest actions; 0 for none. One that is due while another is under way
    is left out, so that training never waits."""
    eval_episodes: int = 16
    """Episodes of each."""

    def check(self) -> None:
        """Raise ConfigError for numbers that cannot be meant."""
        if self.eval_every < 0:
            raise ConfigError(f"eval_every is {self.eval_every}: it must be 0 or more")
        if self.eval_episodes < 1:
            raise ConfigError(f"eval_episodes is {self.eval_episodes}: it must be at least 1")


class PeriodicEvaluation:
    """Writes an evaluation every so many iterations to a run's evaluations.jsonl.

    One that fails is written there with what was raised, and the first that does is told: the run itself goes on.
    """

    def __init__(
        self, run: Path, options: EvaluationOptions, algorithm: Algorithm, env: Environment, seed: int
    ) -> None:
        self.every, self._path = options.eval_every, run / "evaluations.jsonl"
        self._running = BackgroundEvaluation(algorithm, env, options.eval_episodes, seed, deterministic=True)
        self._iterations: dict[int, int] = {}
        self._has_failed = False

    def consider(self, iteration: int, steps: int, params: Any) -> None:
        """Keep what has ended, and begin another if one is due."""
        self._keep(wait=False)
        if iteration % self.every == 0 and self._running.submit(params, steps):
            self._iterations[steps] = iteration

    def __enter__(self) -> "PeriodicEvaluation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._keep(wait=True)
        finally:
            self._running.close()

    def _keep(self, wait: bool) -> None:
        for steps, found in self._running.finished(wait):
            when = {"iteration": self._iterations.pop(steps), "steps": steps}
            outcome = found.as_record() if isinstance(found, Evaluation) else self._failed(found, steps)
            record = when | outcome
            try:
                with open(self._path, "a") as file:
                    file.write(json.dumps(record) + "\n")
            except OSError as error:  # the run itself is worth more
                print(f"fragmenta: an evaluation could not be kept: {error.strerror}", file=sys.stderr)

    def _failed(self, error: BaseException, steps: int) -> dict[str, Any]:
        words = " ".join(str(error).split()) or type(error).__name__
        if not self._has_failed:
            later = "training goes on, and what becomes of later ones is in evaluations.jsonl"
            print(f"fragmenta: the evaluation after {steps:,} steps failed: {words}; {later}", file=sys.stderr)
        self._has_failed = True
        return {"failed": words}

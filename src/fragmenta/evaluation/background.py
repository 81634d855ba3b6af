"""Evaluate in a background thread while training continues."""

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.evaluation.evaluate import Evaluation
from fragmenta.evaluation.over_seeds import SeedEvaluations, evaluate_trained
from fragmenta.evaluation.playing import play
from fragmenta.evaluation.videos import write_video
from fragmenta.runs.background import lower_priority
from fragmenta.runs.seeds import Seeds, of_seed


def video_name(steps: int) -> str:
    """The file of the video of an evaluation after this many steps; sorted by name, videos are in the order of time."""
    return f"{steps:012d}.gif"


class BackgroundEvaluation:
    """Evaluations in a background thread, one at a time."""

    def __init__(
        self,
        algorithm: Algorithm,
        env: Environment,
        episodes: int,
        seed: int,
        deterministic: bool,
        videos: Path | None = None,
    ) -> None:
        self._algorithm, self._env, self._seed = algorithm, env, seed
        self._settings = episodes, seed, deterministic
        self._videos = videos
        """The folder for a video of each evaluation; None for no videos."""
        self._thread = ThreadPoolExecutor(1, "fragmenta-evaluation", lower_priority)
        self._pending: list[tuple[int, Future[Evaluation | SeedEvaluations]]] = []

    def submit(self, params: Any, steps: int) -> bool:
        """Evaluate a copy of the parameters, which were reached after `steps` steps.

        Returns False and does nothing if the previous evaluation is still running.
        """
        if any(not future.done() for _, future in self._pending):
            return False
        params = jax.device_get(params)
        self._pending.append((steps, self._thread.submit(self._evaluate, params, steps)))
        return True

    def _evaluate(self, params: Any, steps: int) -> Evaluation | SeedEvaluations:
        evaluation = evaluate_trained(self._algorithm, self._env, params, *self._settings)
        if self._videos:
            try:
                self._record(params, self._videos / video_name(steps))
            except Exception as error:  # the evaluation itself is sound
                reason = " ".join(str(error).split()) or type(error).__name__
                print(f"fragmenta: no video of the evaluation after {steps:,} steps: {reason}", file=sys.stderr)
        return evaluation

    def _record(self, params: Any, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        algorithm = self._algorithm
        if isinstance(algorithm, Seeds):
            algorithm, params = algorithm.inner, of_seed(params, 0)
        write_video(play(algorithm, self._env, params, 1, self._seed), path)

    def finished(self, wait: bool = False) -> list[tuple[int, Evaluation | SeedEvaluations | BaseException]]:
        """Steps and evaluation (or exception) of those that ended since the last call; with `wait`, of all."""
        ready = [(steps, future) for steps, future in self._pending if wait or future.done()]
        self._pending = [entry for entry in self._pending if entry not in ready]
        return [(steps, future.exception() or future.result()) for steps, future in ready]

    def close(self) -> None:
        """Wait for the running evaluation, and end the thread."""
        self._thread.shutdown()

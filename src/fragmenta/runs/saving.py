"""Save checkpoints in the background during training."""

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from fragmenta.errors import ConfigError, StorageError
from fragmenta.runs.background import lower_priority
from fragmenta.runs.checkpoints import EPISODES, Checkpoint, CheckpointFolder

SECONDS_BETWEEN = 60.0
PAUSE = 9.0
"""After writing the best state, how many times as long to wait before the next one: returns may rise all the time, and
writing a large state takes long."""


@dataclasses.dataclass(frozen=True)
class SaveOptions:
    """When to write checkpoints, and which to keep."""

    checkpoint_every: int = 0
    """Iterations between checkpoints; 0 for one per minute. The end of a run is always saved."""
    keep_last: int = 3
    """How many of the latest checkpoints to keep."""
    keep_best: bool = True
    """Also keep the best state: by evaluation with eval_every, else by the mean return over the latest episodes."""

    save_replay: bool = False
    """Checkpoints contain the replay, so that a resumed run continues exactly; without, it fills an empty one."""

    def check(self) -> None:
        """Raise ConfigError for values out of range."""
        if self.checkpoint_every < 0:
            raise ConfigError(f"checkpoint_every is {self.checkpoint_every}: it must be 0 or more")
        if self.keep_last < 1:
            raise ConfigError(f"keep_last is {self.keep_last}: it must be at least 1")


class Saver:
    """Writes checkpoints in a background thread: those that are due, and the best state when it happens. While it
    writes one, only the newest of each kind is queued."""

    def __init__(self, path: Path, options: SaveOptions, before: Callable[[], None], measure: str = EPISODES) -> None:
        self._folder = CheckpointFolder(path, options.keep_last, options.keep_best)
        self._before = before
        """Called before each write: a checkpoint must not be ahead of the records of its iterations."""
        self.every, self._last = options.checkpoint_every, time.monotonic()
        self._changed = threading.Condition()
        self._due: Checkpoint | None = None
        self._best: Checkpoint | None = None
        self._saved = -1
        """The iteration of the latest checkpoint that was due."""
        self._keeps_best, self._measure = options.keep_best, measure
        earlier = self._folder.best()
        self._best_score = earlier.score if earlier and earlier.measure == measure else -math.inf
        self._best_after = 0.0
        """When the best state may be written again."""
        self._closing = False
        self._failure: OSError | None = None
        self._written: list[Path] = []
        self._thread = threading.Thread(target=self._work, name="fragmenta-saver", daemon=True)
        self._thread.start()

    def due(self, iteration: int) -> bool:
        """Whether a checkpoint is due now."""
        if self.every:
            return iteration % self.every == 0
        return time.monotonic() - self._last >= SECONDS_BETWEEN

    def consider(self, checkpoint: Checkpoint, score: float | None) -> None:
        """Queue a state if its score makes it the best so far."""
        if not self._keeps_best or score is None or not score > self._best_score:  # NaN is not
            return
        with self._changed:
            self._best_score = score
            self._best = dataclasses.replace(checkpoint, score=score, measure=self._measure)
            self._changed.notify_all()

    def save(self, checkpoint: Checkpoint) -> None:
        """Queue a checkpoint unless it was queued before; raises StorageError if an earlier write failed."""
        self._last = time.monotonic()
        with self._changed:
            self._raise_failure()
            if checkpoint.iteration == self._saved:
                return
            self._due, self._saved = checkpoint, checkpoint.iteration
            self._changed.notify_all()

    def written(self) -> list[Path]:
        """The checkpoints written since the last call."""
        with self._changed:
            written, self._written = self._written, []
        return written

    def close(self) -> None:
        """Wait until everything is written; raises StorageError if a write failed."""
        self._end()
        self._raise_failure()

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        lower_priority()
        written: set[int] = set()
        """Iterations whose checkpoints on disk have the same arrays as those queued."""
        while (entry := self._next()) is not None:
            checkpoint, is_due = entry
            began = time.monotonic()
            try:
                if checkpoint.iteration not in written or not self._folder.keep(checkpoint, is_due):
                    self._before()
                    path = self._folder.save(checkpoint, is_due)
                    with self._changed:
                        self._written.append(path)
                written = {iteration for iteration in map(int, self._folder.names()) if iteration in written}
                written.add(checkpoint.iteration)
            except OSError as error:
                self._failure = error
                return
            if not is_due:
                ended = time.monotonic()
                self._best_after = ended + PAUSE * (ended - began)

    def _next(self) -> tuple[Checkpoint, bool] | None:
        """The next checkpoint to write and whether it is due, the earlier first; None at the end."""
        with self._changed:
            while True:
                pause = max(0.0, self._best_after - time.monotonic()) if self._best and not self._closing else None
                if self._due or self._closing or pause == 0.0:
                    break
                self._changed.wait(pause)
            best, due = self._best, self._due
            if best and due and best.iteration == due.iteration:
                self._best = self._due = None
                return best, True
            if best and (due is None or best.iteration < due.iteration):
                self._best = None
                return best, False
            self._due = None
            return (due, True) if due else None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            reason = self._failure.strerror or self._failure
            problem = f"cannot write a checkpoint to '{self._folder.path}': {reason}"
            raise StorageError(f"{problem}: the run has ended; free some disk space")

"""Save checkpoints in the background during training."""

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from fragmenta.errors import ConfigError, StorageError
from fragmenta.runs.background import lower_priority
from fragmenta.runs.checkpoints import Checkpoint, CheckpointFolder

SECONDS_BETWEEN = 60.0


@dataclasses.dataclass(frozen=True)
class SaveOptions:
    """When to write checkpoints, and which to keep."""

    checkpoint_every: int = 0
    """Iterations between checkpoints; 0 for one per minute. The end of a run is always saved."""
    keep_last: int = 3
    """How many of the latest checkpoints to keep."""
    keep_best: bool = True
    """Also keep the state with the best mean return over the latest episodes."""

    def check(self) -> None:
        """Raise ConfigError for values out of range."""
        if self.checkpoint_every < 0:
            raise ConfigError(f"checkpoint_every is {self.checkpoint_every}: it must be 0 or more")
        if self.keep_last < 1:
            raise ConfigError(f"keep_last is {self.keep_last}: it must be at least 1")


class Saver:
    """Writes checkpoints in a background thread. While it writes one, only the newest of later ones is queued, and the
    best one if it was never written."""

    def __init__(self, path: Path, options: SaveOptions, before: Callable[[], None]) -> None:
        self._folder = CheckpointFolder(path, options.keep_last, options.keep_best)
        self._before = before
        """Called before each write: a checkpoint must not be ahead of the records of its iterations."""
        self.every, self._last = options.checkpoint_every, time.monotonic()
        self._changed = threading.Condition()
        self._waiting: list[Checkpoint] = []
        self._queued: Checkpoint | None = None
        self._keeps_best = options.keep_best
        self._best: Checkpoint | None = None
        """The best state, if it is not written or queued yet."""
        self._best_score = self._folder.best()[1] if options.keep_best else 0.0
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

    def consider(self, checkpoint: Checkpoint) -> None:
        """Remember the best state since the last checkpoint, to be written with the next."""
        if self._keeps_best and checkpoint.score is not None and checkpoint.score > self._best_score:
            self._best, self._best_score = checkpoint, checkpoint.score

    def save(self, checkpoint: Checkpoint) -> None:
        """Queue a checkpoint unless it was queued before; raises StorageError if an earlier write failed."""
        self._last = time.monotonic()
        with self._changed:
            self._raise_failure()
            if checkpoint is self._queued:
                return
            best = self._best or next((each for each in self._waiting if each.score == self._best_score), None)
            self._waiting = [checkpoint] if best is None or best is checkpoint else [best, checkpoint]
            self._queued, self._best = checkpoint, None
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
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                checkpoint = self._waiting.pop(0)
            try:
                self._before()
                path = self._folder.save(checkpoint)
                with self._changed:
                    self._written.append(path)
            except OSError as error:
                self._failure = error
                return

    def _raise_failure(self) -> None:
        if self._failure is not None:
            reason = self._failure.strerror or self._failure
            problem = f"cannot write a checkpoint to '{self._folder.path}': {reason}"
            raise StorageError(f"{problem}: the run has ended; free some disk space")

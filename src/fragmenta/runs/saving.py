"""Save checkpoints while training goes on."""

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
    """When a run is saved, and what is kept."""

    checkpoint_every: int = 0
    """Iterations between checkpoints; 0 for one a minute. The end of a run is saved in any case."""
    keep_last: int = 3
    """How many of the latest checkpoints are kept."""
    keep_best: bool = True
    """Keep the checkpoint with the best mean return, too."""

    def check(self) -> None:
        """Raise ConfigError for numbers that cannot be meant."""
        if self.checkpoint_every < 0:
            raise ConfigError(f"checkpoint_every is {self.checkpoint_every}: it must be 0 or more")
        if self.keep_last < 1:
            raise ConfigError(f"keep_last is {self.keep_last}: it must be at least 1")


class Saver:
    """Writes checkpoints in a thread of its own. While it writes one, the newest that comes waits, older ones go."""

    def __init__(self, path: Path, options: SaveOptions, before: Callable[[], None]) -> None:
        self._folder = CheckpointFolder(path, options.keep_last, options.keep_best)
        self._before = before
        """Done before each is written: a checkpoint must not be ahead of the records of its iterations."""
        self.every, self._last = options.checkpoint_every, time.monotonic()
        self._changed = threading.Condition()
        self._waiting: Checkpoint | None = None
        self._taken: Checkpoint | None = None
        self._closing = False
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._work, name="fragmenta-saver", daemon=True)
        self._thread.start()

    def due(self, iteration: int) -> bool:
        """Whether a checkpoint is due now."""
        if self.every:
            return iteration % self.every == 0
        return time.monotonic() - self._last >= SECONDS_BETWEEN

    def save(self, checkpoint: Checkpoint) -> None:
        """Have it written as soon as may be, unless it is already; raises what went wrong with an earlier one."""
        self._last = time.monotonic()
        with self._changed:
            self._raise_failure()
            if checkpoint is self._taken:
                return
            self._waiting = self._taken = checkpoint
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until all is written; raises what went wrong."""
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
                checkpoint, self._waiting = self._waiting, None
            if checkpoint is None:
                return
            try:
                self._before()
                self._folder.save(checkpoint)
            except OSError as error:
                self._failure = error
                return

    def _raise_failure(self) -> None:
        if self._failure is not None:
            what = self._failure.strerror or self._failure
            where = f"cannot write a checkpoint to '{self._folder.path}': {what}"
            raise StorageError(f"{where}: the run has ended; free some space first")

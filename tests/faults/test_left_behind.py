"""After any kind of end, a run leaves no open file, thread, process or shared memory in a Python process."""

import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import fragmenta
from fragmenta import A2C, EnvOptions, EvaluationOptions, RunOptions, SaveOptions
from fragmenta.training.stopping import StoppedError
from fragmenta_core.faults import EnvironmentFaultError

ALGORITHM = A2C(num_envs=4, horizon=8, hidden=(8,), total_steps=8 * 32)
SHARED_MEMORY = Path("/dev/shm")


class At:
    """A watcher that calls a function in the middle of the run."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def planned(self, *_: Any) -> None: ...
    def placed(self, *_: Any) -> None: ...
    def remarked(self, text: str) -> None: ...

    def compiled(self, seconds: float) -> None: ...

    def progressed(self, progress: Any) -> None:
        if progress.iteration == 3:
            self._act()


def nothing() -> None: ...


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_twice() -> None:
    interrupt()
    interrupt()


def fail() -> None:
    raise LookupError("this is the caller's own")


def run(run_dir: Path, act: Callable[[], None] = nothing, fault_at: int = 10**6) -> None:
    """A run with everything that opens resources: processes, TensorBoard, checkpoints, evaluations, a timeline."""
    arguments = f'{{"fault": "raise", "at": {fault_at}}}'
    env = fragmenta.make("faulty_envs:Steady", EnvOptions(arguments, env_mode="processes", env_workers=2))
    evaluation = EvaluationOptions(0 if fault_at == 10**6 else 1, 1)  # episodes end only with the fault
    options: dict[str, Any] = {"options": RunOptions(saving=SaveOptions(1), evaluation=evaluation, timeline=True)}
    fragmenta.train(ALGORITHM, env, run_dir=run_dir, watcher=At(act), **options)


def open_resources() -> dict[str, Any]:
    """The open resources of this process. Files are listed by target, because descriptors are reused."""
    gc.collect()  # frees what a past exception refers to
    files = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return {
        "files": sorted(files),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "processes": psutil.Process().children(recursive=True),
        "shared memory": sorted(SHARED_MEMORY.iterdir()),
    }


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A first run, because JAX and Orbax keep some resources open."""
    run(tmp_path_factory.mktemp("warm") / "run")


@pytest.mark.full
@pytest.mark.skipif(not SHARED_MEMORY.exists(), reason="needs /proc and /dev/shm")
@pytest.mark.parametrize(
    ("act", "fault_at", "raises"),
    [
        (nothing, 10**6, None),
        pytest.param(fail, 10**6, LookupError, marks=pytest.mark.full),
        (nothing, 20, EnvironmentFaultError),
        pytest.param(interrupt, 10**6, StoppedError, marks=pytest.mark.full),
        (interrupt_twice, 10**6, KeyboardInterrupt),
    ],
)
def test_a_run_leaves_nothing_open(
    act: Callable[[], None], fault_at: int, raises: type[BaseException] | None, tmp_path: Path
) -> None:
    before, handler = open_resources(), signal.getsignal(signal.SIGINT)  # SIG_IGN in the background of a shell
    if raises is None:
        run(tmp_path / "run", act, fault_at)
    else:
        with pytest.raises(raises):
            run(tmp_path / "run", act, fault_at)
    assert open_resources() == before
    assert signal.getsignal(signal.SIGINT) is handler

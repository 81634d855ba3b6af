"""What a run leaves in a Python process that lives on, however it ended: no file, no thread, no process, no memory."""

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
from fragmenta import A2C, EnvOptions, EvaluationOptions, SaveOptions
from fragmenta.training.stopping import StoppedError
from fragmenta_core.faults import EnvironmentFaultError

ALGORITHM = A2C(num_envs=4, horizon=8, hidden=(8,), total_steps=8 * 32)
SHARED_MEMORY = Path("/dev/shm")


class At:
    """Does something once the run is in the middle."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def planned(self, *_: Any) -> None: ...
    def placed(self, *_: Any) -> None: ...

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
    """Everything that opens something: processes, TensorBoard, checkpoints, evaluations, a timeline."""
    arguments = f'{{"how": "raise", "at": {fault_at}}}'
    env = fragmenta.make("faulty_envs:Steady", EnvOptions(arguments, env_mode="processes", env_workers=2))
    evaluated = EvaluationOptions(0 if fault_at == 10**6 else 1, 1)  # an episode ends with the fault only
    how: dict[str, Any] = {"save_options": SaveOptions(1), "evaluation": evaluated, "timeline": True}
    fragmenta.train(ALGORITHM, env, run_dir=run_dir, watcher=At(act), **how)


def held() -> dict[str, Any]:
    """What this process has open. Files by what they are: numbers are given anew."""
    gc.collect()  # what an exception refers to goes with it
    files = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the one that listed them
            continue
    return {
        "files": sorted(files),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "processes": psutil.Process().children(recursive=True),
        "shared memory": sorted(SHARED_MEMORY.iterdir()),
    }


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What JAX and Orbax open once stays open."""
    run(tmp_path_factory.mktemp("warm") / "run")


@pytest.mark.skipif(not SHARED_MEMORY.exists(), reason="needs /proc and /dev/shm")
@pytest.mark.parametrize(
    ("act", "fault_at", "raises"),
    [
        (nothing, 10**6, None),
        (fail, 10**6, LookupError),
        (nothing, 20, EnvironmentFaultError),
        (interrupt, 10**6, StoppedError),
        (interrupt_twice, 10**6, KeyboardInterrupt),
    ],
)
def test_a_run_leaves_nothing_open(
    act: Callable[[], None], fault_at: int, raises: type[BaseException] | None, tmp_path: Path
) -> None:
    before, handler = held(), signal.getsignal(signal.SIGINT)  # which is none in a shell's background
    if raises is None:
        run(tmp_path / "run", act, fault_at)
    else:
        with pytest.raises(raises):
            run(tmp_path / "run", act, fault_at)
    assert held() == before
    assert signal.getsignal(signal.SIGINT) is handler

"""Environments that end or block the process that steps them: the guard beside it says which one it was."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest


@pytest.mark.full
@pytest.mark.brief("hold")
@pytest.mark.parametrize("fault", ["exit", "segfault", "hold"])
def test_an_environment_that_ends_or_blocks_the_process_of_the_run_is_named(fault: str) -> None:
    program = (
        "import numpy as np; from test_host_faults import pool\n"
        f"p = pool({fault!r}, share=3, mode='serial', timeout=1.0); p.reset(np.arange(1, 5))\n"
        "for _ in range(8): p.step(0, np.zeros(4, np.int32))\n"
        "p.close()\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    which, lines = "environment 2 of faulty_envs:Steady", completed.stderr.splitlines()
    if fault == "hold":  # for a few seconds
        assert completed.returncode == 0
        (line,) = lines
        assert line.startswith(f"fragmenta: {which} has not finished its step within 1 s and blocks the run: end it")
    else:
        assert completed.returncode == {"exit": 7, "segfault": -signal.SIGSEGV}[fault]
        assert lines[-1].startswith(f"fragmenta: the process ended while it stepped {which}: with --env-mode processes")


def test_a_guard_ends_with_its_process_even_if_an_environment_has_forked_another() -> None:
    program = (
        "import os, sys, time, psutil; from fragmenta_host.guard import Guard\n"
        "guard = Guard('here', 0, 60.0, is_part=False)\n"
        "(child,) = psutil.Process().children()\n"
        "if os.fork():\n"
        "    print(child.pid, flush=True)\n"
        "    os._exit(0)\n"
        "os.close(1), os.close(2), time.sleep(30)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(process.stdout)).wait(10)

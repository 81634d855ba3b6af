"""Environments that end or block the process that steps them: the guard beside it says which one it was."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


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

"""What choosing the plan takes: `fragmenta train` until its first iteration is reported, with `--policy auto` beside
naming the plan that auto chose, each in a process of its own.

`first` begins with an empty folder for profiles and compiled programs, `again` with that which the same command filled.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

COMMAND = "import sys; from fragmenta.cli.main import main; sys.exit(main())"
PROGRAMS = {
    "ppo-long": ("ppo CartPole-v1", 2_000_000),
    "ppo-short": ("ppo CartPole-v1", 100_000),
    "ppo-host": ("ppo gymnasium:CartPole-v1 --num-envs 32", 3_000_000),
    "dqn": ("dqn CartPole-v1", 5_000_000),
    "sac": ("sac Pendulum-v1", 100_000),
}
ENDS_AFTER = 180.0
"""Seconds after which a run that has reported nothing counts as failed."""


def seconds_to_first(arguments: list[str], cache: Path) -> tuple[float, list[str]]:
    """The seconds from the start of a process until it reports an iteration, and the flags that name its plan."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-u", "-c", COMMAND, "train", *arguments, "--run-dir", str(run)]
        environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        alarm = threading.Timer(ENDS_AFTER, process.kill)
        alarm.start()
        seconds, lines = None, []
        try:
            for line in process.stdout:
                lines.append(line)
                if line.startswith("step "):
                    seconds = time.perf_counter() - began
                    break
            if seconds is None:
                raise SystemExit(f"{' '.join(arguments)} reported no iteration:\n{''.join(lines[-20:])}")
            config = json.loads((run / "config.json").read_text())
        finally:
            alarm.cancel()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    flags = ["--policy", config["policy"], "--engine", config["engine"], "--replicas", str(config["replicas"])]
    return seconds, [*flags, "--cpu-devices", str(len(config["devices"]))]


def measured(program: str, rounds: int) -> tuple[str, dict[str, list[float]]]:
    """The plan that auto chose last, and the seconds of each way in every round."""
    what, steps = PROGRAMS[program]
    arguments = [*what.split(), "--total-steps", str(steps)]
    seconds: dict[str, list[float]] = {way: [] for way in ("auto first", "auto again", "named first", "named again")}
    flags: list[str] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as auto, tempfile.TemporaryDirectory() as named:
            first, flags = seconds_to_first(arguments, Path(auto))
            again, _ = seconds_to_first(arguments, Path(auto))
            rest = [seconds_to_first([*arguments, *flags], Path(named))[0] for _ in range(2)]
        for way, took in zip(seconds, (first, again, *rest), strict=True):
            seconds[way].append(took)
        print(f"{program}: " + ", ".join(f"{way} {took[-1]:.1f} s" for way, took in seconds.items()), flush=True)
    return " ".join(flags), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS), help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for program in options.programs:
        flags, seconds = measured(program, options.rounds)
        print(f"{program}: auto chose {flags}", flush=True)
        middle = {way: statistics.median(took) for way, took in seconds.items()}
        extra = [
            statistics.median(a - b for a, b in zip(seconds[f"auto {when}"], seconds[f"named {when}"], strict=True))
            for when in ("first", "again")
        ]
        what, steps = PROGRAMS[program]
        cells = [f"{middle[f'{way} {when}']:.1f}" for when in ("first", "again") for way in ("named", "auto")]
        rows.append([f"`{what}`, {steps:,} steps", *cells[:2], f"{extra[0]:+.1f}", *cells[2:], f"{extra[1]:+.1f}"])
    print(
        "| | named, first | auto, first | extra | named, again | auto, again | extra |\n|---|---|---|---|---|---|---|"
    )
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()

"""Damaged checkpoints, and checkpoints whose writer is killed."""

import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fragmenta import ConfigError
from fragmenta.runs.checkpoint_files import LARGE_BYTES
from fragmenta.runs.checkpoints import EVALUATION, Checkpoint, CheckpointFolder
from fragmenta.runs.saving import SaveOptions, Saver

KILLS = 1_000 if os.environ.get("CHAOS") else 6


def checkpoint(iteration: int) -> Checkpoint:
    arrays = {f"layer{i}.kernel": np.full((8, 8), iteration, np.float32) for i in range(4)}
    arrays |= {"keys": np.full((4, 2), iteration, np.uint32), "nothing": np.zeros((0, 3), np.float32)}
    return Checkpoint(arrays, iteration, 100 * iteration, float(-iteration))


def assert_is(actual: Checkpoint, iteration: int) -> None:
    expected = checkpoint(iteration)
    assert (actual.iteration, actual.steps) == (iteration, expected.steps)
    assert actual.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert actual.arrays[name].dtype == array.dtype
        assert np.array_equal(actual.arrays[name], array)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "flipped": flip,
    "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_any_file_is_detected_and_the_previous_checkpoint_is_used(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = CheckpointFolder(tmp_path / "sound")
    for iteration in (1, 2):
        folder.save(checkpoint(iteration))
    files = sorted(path.relative_to(folder.path) for path in folder.path.rglob("*2/**/*") if path.is_file())
    assert len(files) > 5
    for file in files:
        shutil.copytree(folder.path, tmp_path / "damaged")
        DAMAGE[damage](tmp_path / "damaged" / file)
        assert_is(CheckpointFolder(tmp_path / "damaged").newest(), 1)
        warning = capsys.readouterr().err
        assert warning.startswith(
            f"fragmenta: checkpoint 1 is used, because {tmp_path / 'damaged'}/0000000002 is damaged"
        )
        assert warning.count("\n") == 1
        shutil.rmtree(tmp_path / "damaged")


def test_the_latest_and_the_best_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2)
    for iteration in range(1, 6):  # the first is the best
        folder.save(checkpoint(iteration))
    assert folder.names() == ["0000000001", "0000000004", "0000000005"]


def test_the_best_state_is_kept_although_no_checkpoint_was_due(tmp_path: Path) -> None:
    scores = {1: 10.0, 2: 50.0, 3: 20.0, 4: 30.0}
    with Saver(tmp_path, SaveOptions(keep_last=1), lambda: None) as saver:
        for iteration, score in scores.items():
            saver.consider(checkpoint(iteration), score)
        saver.save(checkpoint(5))
    folder = CheckpointFolder(tmp_path)
    assert folder.names() == ["0000000002", "0000000005"]
    assert_is(folder.chosen("best"), 2)
    assert_is(folder.chosen("last"), 5)
    assert_is(folder.chosen("2"), 2)
    with pytest.raises(ConfigError, match=r"no checkpoint '3' \(existing ones: 2, 5\): choose best, last or"):
        folder.chosen("3")
    with Saver(tmp_path, SaveOptions(keep_last=1), lambda: None) as saver:  # of a resumed run
        saver.consider(checkpoint(6), 40.0)
        saver.save(checkpoint(7))
    assert folder.names() == ["0000000002", "0000000007"]


def test_the_best_state_is_written_when_it_happens(tmp_path: Path) -> None:
    with Saver(tmp_path, SaveOptions(checkpoint_every=1_000), lambda: None) as saver:
        saver.consider(checkpoint(3), 10.0)
        until = time.monotonic() + 30
        while not (tmp_path / "kept.json").exists() and time.monotonic() < until:
            time.sleep(0.01)
        folder = CheckpointFolder(tmp_path)
        assert_is(folder.chosen("best"), 3)  # although nothing was due, and nothing has ended


def test_a_state_is_rated_after_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Saver(tmp_path, SaveOptions(keep_last=1), lambda: None, EVALUATION) as saver:
        for iteration in (1, 2, 3):
            saver.save(checkpoint(iteration))
            while not saver.written():
                time.sleep(0.01)
            if iteration == 2:
                saver.consider(checkpoint(2), 70.0)  # its evaluation has ended
                while CheckpointFolder(tmp_path).best() is None:
                    time.sleep(0.01)
        assert not saver.written(), "it is not written twice"
    folder = CheckpointFolder(tmp_path)
    assert folder.names() == ["0000000002", "0000000003"]
    assert_is(folder.chosen("best"), 2)
    assert (
        capsys.readouterr().err == "fragmenta: the best checkpoint is 2, by the mean return of its evaluation, 70.0\n"
    )
    folder.discard_after(2)
    shutil.rmtree(tmp_path / "0000000002")
    with pytest.raises(ConfigError, match=r"no checkpoint 'best' \(none has a return so far\)"):
        folder.chosen("best")


def test_superseded_best_states_do_not_displace_the_latest(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2)
    for iteration in (1, 2):
        folder.save(dataclasses.replace(checkpoint(iteration), score=None))
    for iteration in (3, 4, 5):
        folder.save(dataclasses.replace(checkpoint(iteration), score=float(iteration)), is_latest=False)
    assert folder.names() == ["0000000001", "0000000002", "0000000005"]


def test_no_intact_checkpoint_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no intact checkpoint"):
        CheckpointFolder(tmp_path / "none").newest()


# Forks before JAX computes anything: starting Python with all imports takes longer than a hundred saves.
WRITER = """
import os, sys
sys.path[:0] = {paths!r}
from pathlib import Path
import orbax.checkpoint
from test_checkpoint_files import checkpoint
from fragmenta.runs.checkpoints import CheckpointFolder
for line in sys.stdin:
    first = int(line)
    child = os.fork()
    if child:
        print("pid", child, flush=True)
        _, status = os.waitpid(child, 0)
        print("ended", os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status), flush=True)
        continue
    folder = CheckpointFolder(Path({folder!r}))
    iteration = first
    while True:
        folder.save(checkpoint(iteration))
        print("saved", iteration, flush=True)
        iteration += 1
"""


@pytest.mark.timeout(3_600)
def test_a_killed_writer_leaves_intact_checkpoints_and_loses_only_the_one_in_flight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = WRITER.format(paths=[str(Path(__file__).parent)], folder=str(tmp_path))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    writer = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
        env=environment,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    folder, saved = CheckpointFolder(tmp_path), 0
    generator = random.Random(0)
    child = None
    try:
        for _ in range(KILLS):
            print(saved + 1, file=writer.stdin, flush=True)
            child = int(writer.stdout.readline().removeprefix("pid "))
            assert writer.stdout.readline() == f"saved {saved + 1}\n"  # it is running
            saved += 1
            time.sleep(generator.uniform(0.0, 0.1))
            os.kill(child, signal.SIGKILL)
            while not (line := writer.stdout.readline()).startswith("ended"):
                saved = int(line.removeprefix("saved "))
            assert line == f"ended {int(signal.SIGKILL)}\n"
            child = None
            newest = folder.newest()
            # There may be one more than was printed, if it was killed between the rename and the print.
            assert newest.iteration in (saved, saved + 1)
            assert_is(newest, newest.iteration)
            saved = newest.iteration
    finally:
        if child is not None:
            os.kill(child, signal.SIGKILL)
        writer.stdin.close()
        writer.wait(20)
        writer.stdout.close()
    assert not capsys.readouterr().err, "no checkpoint was torn"


def test_a_path_with_brackets_and_a_state_without_small_arrays_are_saved(tmp_path: Path) -> None:
    """Orbax takes the brackets for a pattern, and refuses an empty array."""
    folder = CheckpointFolder(tmp_path / "run[1]*")
    folder.save(checkpoint(1))
    assert_is(folder.newest(), 1)
    large = {"replay": np.arange(LARGE_BYTES, dtype=np.uint8)}
    folder.save(dataclasses.replace(checkpoint(2), arrays=large))
    assert np.array_equal(folder.newest().arrays["replay"], large["replay"])

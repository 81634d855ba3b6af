"""Environments that fail: one line with environment, step, expected and actual; restarts; nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from fragmenta import PPO, EnvOptions, RunOptions, train
from fragmenta_core.faults import EnvironmentFaultError
from fragmenta_host.catalogue import Spec
from fragmenta_host.env_processes import EnvProcesses
from fragmenta_host.options import PoolOptions
from fragmenta_host.pool import ClosedPoolError, Pool

COUNT = 4


def pool(fault: str, share: int = 1, at: int = 5, marker: str = "", **options: object) -> Pool:
    spec = Spec("faulty_envs", "Steady", {"fault": fault, "share": share, "at": at, "marker": marker})
    return Pool(spec, PoolOptions(**{"mode": "processes", "workers": 2, "timeout": 20.0, **options}))  # pyright: ignore


def run(environments: Pool, steps: int = 8) -> list[np.ndarray]:
    """Run with seeds 1 to 4: with share 3, environment 2 fails."""
    try:
        environments.reset(np.arange(1, COUNT + 1))
        return [environments.step(0, np.zeros(COUNT, np.int32)).truncated for _ in range(steps)]
    finally:
        environments.close()


FAULTS = {
    "raise": "step raised ValueError: the motor is stuck",
    "exit": "ended its process with exit code 7",
    "leave": "step raised SystemExit: 5",
    "segfault": "ended its process by SIGSEGV",
    "hang": "did not finish within 2 s, so its process was killed",
    "nan": "step returned NaN in its observation, expected numbers",
    "nan_reward": "step returned NaN in its reward, expected numbers",
    "shape": "step returned observation of shape (3,), expected (2,)",
    "dtype": "step returned observation of type <U1, expected float32",
    "four": "step returned 4 values, expected observation, reward, terminated, truncated, info",
    "nothing": "step returned NoneType, expected observation, reward, terminated, truncated, info",
    "space": "step changed its observation space from Box(-inf, inf, (2,), float32) to Box(0.0, 1.0, (3,), float32)",
}


@pytest.mark.brief("raise", "hang", "segfault", "nan", "shape")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_with_environment_and_step(fault: str) -> None:
    with pytest.raises(EnvironmentFaultError) as caught:
        run(pool(fault, share=3, timeout=2.0 if fault == "hang" else 20.0))
    assert str(caught.value).startswith(f"environment 2 of faulty_envs:Steady, step 5: {FAULTS[fault]}")
    assert "--env-restarts" in str(caught.value)
    assert ("the motor is stuck" in caught.value.trace) == (fault == "raise")


@pytest.mark.parametrize("fault", ["raise", "exit", "nan", pytest.param("hang", marks=pytest.mark.full)])
def test_a_fault_is_survived_within_the_budget(fault: str, capfd: pytest.CaptureFixture[str]) -> None:
    environments = pool(fault, share=3, restarts=2, timeout=2.0 if fault == "hang" else 20.0)
    truncated = run(environments)
    restarted = [0, 2] if fault in ("exit", "hang") else [2]  # one process has the even environments
    assert environments.restarted == 1
    assert [rows.tolist() for rows in truncated[:4]] == [[False] * COUNT] * 4
    assert np.flatnonzero(truncated[4]).tolist() == restarted
    assert not np.any(truncated[5:])
    assert f"step 5: {FAULTS[fault]}; restarted (1 of 2)" in capfd.readouterr().err


def test_the_budget_ends() -> None:
    with pytest.raises(EnvironmentFaultError, match=r"step 5: step raised .*\(3 restarts used\)"):
        run(pool("raise", restarts=3))


@pytest.mark.parametrize(("fault", "where"), [("construct", "construction"), ("reset", "reset")])
def test_a_fault_before_the_first_step(fault: str, where: str) -> None:
    with pytest.raises(EnvironmentFaultError, match=f"environment 0 of .*, step 0: {where} raised ValueError"):
        run(pool(fault))


def test_a_lane_notices_that_its_environments_were_restarted_because_of_another_lane() -> None:
    environments = pool("exit", share=3, restarts=1, workers=1)
    environments.open(2)
    try:
        environments.reset(np.arange(1, COUNT + 1))
        action = np.zeros(2, np.int32)
        for _ in range(3):
            environments.step(0, action)
        for step in range(1, 6):  # environment 2 ends the process of all four
            assert environments.step(2, action).truncated.tolist() == [step == 5] * 2
        stepped = environments.step(0, action)
        assert stepped.truncated.tolist() == [True, True]
        assert stepped.next_observation[0][:, 0].tolist() == [3.0, 3.0], "cut off where it last was"
        assert stepped.observation[0][:, 0].tolist() == [0.0, 0.0]
    finally:
        environments.close()


@pytest.mark.full
def test_with_one_process_per_lane_a_fault_in_one_lane_does_not_affect_another() -> None:
    environments = pool("exit", share=3, restarts=1, workers=2)
    environments.open(2)
    try:
        environments.reset(np.arange(1, COUNT + 1))
        action = np.zeros(2, np.int32)
        for step in range(1, 6):
            assert environments.step(2, action).truncated.tolist() == [step == 5] * 2
            assert not environments.step(0, action).truncated.any()
    finally:
        environments.close()


def test_training_continues_after_a_fault() -> None:
    options = EnvOptions(env_args='{"fault": "exit", "at": 20, "share": 2}', env_restarts=50, env_mode="processes")
    algorithm = PPO(num_envs=4, horizon=16, total_steps=4 * 16 * 3, hidden=(8,))
    result = train(algorithm, "faulty_envs:Steady", options=RunOptions(env=options))
    assert result.summary["env_restarts"] > 0
    assert all(np.isfinite(leaf).all() for leaf in [result.metrics[-1]["policy_loss"]])


@pytest.mark.full
def test_the_run_ends_with_the_fault_and_its_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fragmenta.cli.main", "train", "ppo", "faulty_envs:Steady", "--num-envs", "4"]
    flags = ["--env-args", '{"fault": "raise"}', "--env-mode", "processes", "--run-dir", str(tmp_path / "run")]
    completed = subprocess.run(
        [*command, *flags], capture_output=True, text=True, cwd=Path(__file__).parents[1] / "support", timeout=120
    )
    assert completed.returncode == 1
    lines = completed.stderr.strip().splitlines()
    assert lines[-1].startswith("fragmenta: environment 0 of faulty_envs:Steady, step 5: step raised ValueError")
    assert any("in _raise" in line for line in lines), "the traceback of the environment's own code"
    assert not any("fragmenta/worker" in line for line in lines), "and no other"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gymnasium:CartPole-v77", "cannot make gymnasium:CartPole-v77"),
        ("faulty_envs:Missing", "cannot load environment 'faulty_envs:Missing'"),
        ("no_such_module:Env", "cannot load environment 'no_such_module:Env'"),
        ("faulty_envs:NotAnEnvironment", "not a gymnasium.Env"),
        ("vanishing_team:parallel_env", "not a gymnasium.Env: for one .* pettingzoo:vanishing_team"),
        ("faulty_envs:NeedsAnArgument", "wrong arguments: .*missing 1 required positional argument"),
    ],
)
def test_a_wrong_name_is_a_mistake_of_the_user(name: str, message: str) -> None:
    import fragmenta

    with pytest.raises(fragmenta.ConfigError, match=message):
        fragmenta.make(name)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_nothing_is_left_behind() -> None:
    before, shared = children(), set(os.listdir("/dev/shm"))
    for _ in range(5):
        run(pool(""), steps=2)
    assert children() <= before
    assert set(os.listdir("/dev/shm")) <= shared


@pytest.mark.full
def test_processes_that_environments_start_end_with_them() -> None:
    environments = pool("fork")
    environments.reset(np.arange(COUNT))
    family = psutil.Process().children(recursive=True)
    assert len(family) == 2 + COUNT
    started = time.monotonic()
    environments.close()
    assert time.monotonic() - started < 3, "it does not wait for output that never ends"
    assert not psutil.wait_procs(family, 5)[1]


def test_a_fault_in_the_first_step_of_the_second_lane() -> None:
    environments = pool("raise", share=4, at=1, restarts=1)
    environments.open(2)
    try:
        environments.reset(np.arange(1, COUNT + 1))  # the last environment has seed 4
        assert not environments.step(0, np.zeros(2, np.int32)).truncated.any()
        stepped = environments.step(2, np.zeros(2, np.int32))
        assert stepped.truncated.tolist() == [False, True]
        assert stepped.next_observation[0][1].tolist() == [0.0, 0.0]
    finally:
        environments.close()


def test_a_process_that_is_lost_for_two_lanes_at_once_is_replaced_once() -> None:
    environments = pool("exit", share=3, restarts=1, workers=1)
    environments.open(2)
    truncated: dict[int, list[list[bool]]] = {0: [], 2: []}
    together = threading.Barrier(2)

    def lane(low: int) -> None:
        for _ in range(9):  # after the restart, another environment ends the process in its fifth step
            together.wait(20)
            truncated[low].append(environments.step(low, np.zeros(2, np.int32)).truncated.tolist())

    try:
        environments.reset(np.arange(1, COUNT + 1))
        threads = [threading.Thread(target=lane, args=(low,)) for low in truncated]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        environments.close()
    assert environments.restarted == 1
    assert [sum(column) for low in (0, 2) for column in zip(*truncated[low], strict=True)] == [1] * COUNT


@pytest.mark.full
def test_a_process_that_is_lost_in_construction_is_replaced(tmp_path: Path) -> None:
    environments = pool("die_once", restarts=1, marker=str(tmp_path / "died"))
    assert not np.any(run(environments))
    assert environments.restarted == 1


def test_nan_after_a_reset_is_detected() -> None:
    with pytest.raises(EnvironmentFaultError, match=r"environment 2 .*, step 5: step returned NaN in its observation"):
        run(pool("nan_reset", share=3))


@pytest.mark.full
def test_closing_ends_hanging_processes_in_parallel(capfd: pytest.CaptureFixture[str]) -> None:
    environments = pool("hang", at=1, restarts=5, timeout=60.0)
    environments.reset(np.arange(COUNT))
    errors: list[BaseException] = []

    def step() -> None:
        try:
            environments.step(0, np.zeros(COUNT, np.int32))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    time.sleep(0.5)
    started = time.monotonic()
    environments.close()
    thread.join(10)
    assert time.monotonic() - started < 8
    assert isinstance(errors[0], ClosedPoolError)
    assert "restarted" not in capfd.readouterr().err


@pytest.mark.full
def test_the_budget_is_per_run() -> None:
    environments = pool("raise", share=3, restarts=1)
    for _ in range(2):
        environments.open(1)
        run(environments)
        assert environments.restarted == 1


@pytest.mark.full
@pytest.mark.brief("hang")
@pytest.mark.parametrize("fault", ["", "hang"])
def test_environment_processes_end_with_a_killed_parent(fault: str) -> None:
    program = (
        "import numpy as np, sys; sys.path.insert(0, 'tests')\n"
        "from test_host_faults import pool\n"
        f"p = pool({fault!r}, timeout=600.0); p.reset(np.arange(4)); print('ready', flush=True)\n"
        "while True: p.step(0, np.zeros(4, np.int32))\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        workers = psutil.Process(parent.pid).children()
        assert len(workers) == 2
        time.sleep(0.5)
        parent.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(workers, timeout=5)
    assert not alive


def test_environment_processes_never_load_jax() -> None:
    environments = pool("")
    try:
        environments.reset(np.arange(COUNT))
        backend = environments._backend
        assert isinstance(backend, EnvProcesses)
        libraries = Path(f"/proc/{backend._processes[1].process.pid}/maps").read_text()
        assert "numpy" in libraries
        assert "jaxlib" not in libraries
    finally:
        environments.close()

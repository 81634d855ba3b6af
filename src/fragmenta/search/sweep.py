"""Search for good hyper-parameters: propose trials, train them in groups, and keep the results and the best trial."""

import contextlib
import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fragmenta.algorithms import Algorithm
from fragmenta.algorithms.named import AlgorithmLike, algorithm_from
from fragmenta.drawing.html_pieces import listing, table
from fragmenta.engines.base import EngineOptions
from fragmenta.engines.hardware import keep_compiled_programs
from fragmenta.engines.kinds import engine_named
from fragmenta.envs import Environment, EnvOptions, make
from fragmenta.errors import ConfigError
from fragmenta.pictures.sweep_picture import draw_sweep
from fragmenta.runs.opening import describe_algorithm, describe_environment
from fragmenta.runs.run_directory import RunDirectory, read_json
from fragmenta.search.alone import best_run
from fragmenta.search.best import BEST, replace_folder, write_best
from fragmenta.search.group_training import GroupResult, OnProgress
from fragmenta.search.groups import Programs, Task, TrialGroup
from fragmenta.search.in_process import InProcessTrainer, SweepFolder
from fragmenta.search.population import check_population
from fragmenta.search.processes import SweepProcesses, default_jobs
from fragmenta.search.proposals import proposals
from fragmenta.search.ranges import read_ranges
from fragmenta.search.showing import SHOWN, SweepLines, trial_text
from fragmenta.search.trials import Proposal, Trial, TrialFiles, ranked
from fragmenta.training.options import RunOptions
from fragmenta.training.planning import Request, check_run
from fragmenta.training.stopping import Stop, StoppedError, stopped_by_signals

SETTINGS = "sweep.json"


@dataclasses.dataclass(frozen=True, repr=False)
class Sweep:
    """A finished sweep: its directory, and all trials, the best first."""

    path: Path
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The trial with the highest return."""
        return self.trials[0]

    @property
    def best_run(self) -> Path | None:
        """The run directory of the best trial's best seed; None if no trial has a return."""
        return self.path / BEST if (self.path / BEST).exists() else None

    def __repr__(self) -> str:
        return f"Sweep '{self.path}' of {len(self.trials)} trials: the best {trial_text(self.best)}"

    def _repr_html_(self) -> str:
        best = self.trials[:SHOWN]
        return listing(repr(self)) + table((f"trial {trial.number}", trial_text(trial)) for trial in best)


class SweepWatcher(Protocol):
    """Receives the progress of a sweep; the terminal view is one."""

    def grouped(self, programs: int, trials: int, processes: int) -> None:
        """Called before a batch of trials is trained as this many programs (0: each trial as an ordinary run)."""
        ...

    def progressed(self, steps: int, total: int, best: float | None) -> None:
        """Called about once a second with the steps of every trial of a program and the best return among them."""
        ...

    def finished(self, trials: Sequence[Trial]) -> None:
        """Called with trials that are done."""
        ...


class Trainer(Protocol):
    """Trains groups of trials, in this process or in others."""

    processes: int

    def train(
        self, groups: Sequence[TrialGroup], stop: Callable[[], bool], report: OnProgress
    ) -> Iterator[GroupResult]:
        """Train groups, and yield the result of each that was not stopped."""
        ...

    def close(self) -> None:
        """End the processes that were started."""
        ...


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """Where the trials of a sweep are trained."""

    jobs: int | None = None
    """Programs or trials to train at the same time, in one process each. Default: one per core; one on a GPU."""
    engine: str = "processes"
    """Where processes run if there are several: processes (this machine) or ray."""
    address: str | None = None
    """For --engine ray: the address of the cluster, as `ray start` prints it. Default: start Ray on this machine."""

    def check(self) -> None:
        """Raise ConfigError for invalid values."""
        if self.jobs is not None and self.jobs < 1:
            raise ConfigError(f"jobs is {self.jobs}: it must be at least 1")
        if not engine_named(self.engine).apart:
            raise ConfigError(f"engine is '{self.engine}', which starts no processes: use processes or ray")

    @property
    def launching(self) -> EngineOptions:
        """The options of the engine that starts the processes."""
        return EngineOptions(address=self.address)


@dataclasses.dataclass(frozen=True)
class _Search:
    """A sweep that is ready to run."""

    task: Task
    env: Environment
    files: TrialFiles
    folder: SweepFolder
    parts: int
    watcher: SweepWatcher | None

    @property
    def path(self) -> Path:
        """The directory of the sweep."""
        return self.files.path

    def request(self, algorithm: Algorithm, seed: int) -> Request:
        """A request to train one trial as an ordinary run."""
        name, arguments = describe_environment(self.task.env, self.env, self.task.env_options)
        options = RunOptions(env=self.task.env_options, sinks=())
        return Request(algorithm, self.env, name, arguments, None, "local", None, seed, 1, options)


def sweep(
    algorithm: AlgorithmLike,
    env: Any,
    search: Mapping[str, str | Sequence[Any]],
    run_dir: str | Path,
    trials: int | None = None,
    method: str = "random",
    seeds: int = 1,
    total_steps: int | None = None,
    seed: int = 0,
    env_options: EnvOptions | None = None,
    options: JobOptions | None = None,
    watcher: SweepWatcher | None = None,
    progress: bool = True,
    **hyper_parameters: Any,
) -> Sweep:
    """Train trials with values from `search`, and return them ranked by the mean return of their latest episodes.

    `algorithm` and `env` are as in `train`, and so are hyper-parameters by keyword, which all trials share. `search`
    has a range for each hyper-parameter: `"log:1e-4:1e-2"`, `"uniform:0.9:1"`, or a sequence of values.
    `method` is `grid`, `random`, `tpe` or `pbt`; every trial trains `seeds` seeds, starting at `seed`. The same call
    with the same `run_dir` continues a sweep that was stopped. The progress is shown on standard error, unless
    `progress` is False or a `watcher` gets it.
    """
    if total_steps is not None:
        hyper_parameters["total_steps"] = total_steps
    algorithm = algorithm_from(algorithm, hyper_parameters)
    watcher = watcher or (SweepLines(sys.stderr) if progress else None)
    options = options or JobOptions()
    options.check()
    if seeds < 1:
        raise ConfigError(f"seeds is {seeds}: it must be at least 1")
    ranges = read_ranges(algorithm, search)
    propose = proposals(method, ranges, trials, seed)
    env_options = env_options or EnvOptions()
    environment = make(env, env_options)
    first = propose([])
    for proposal in first:
        _check(algorithm, environment, proposal)
    keep_compiled_programs()
    programs = Programs(algorithm, environment)
    if method == "pbt":
        group, *_ = programs.groups(first)
        if group.traced is None:
            raise ConfigError("method 'pbt' needs an environment in JAX: use random or tpe for others")
        check_population(ranges, group.traced, len(first), seeds)
    jobs = 1 if method == "pbt" else options.jobs or default_jobs(options.engine, options.launching)
    name, _ = describe_environment(env, environment, env_options)
    settings = {
        **describe_algorithm(algorithm), "env": name, "env_options": dataclasses.asdict(env_options),
        "search": {name: repr(values) for name, values in ranges.items()},
        "trials": trials, "method": method, "seeds": seeds, "seed": seed,
    }  # fmt: skip
    path, parts = _directory(Path(run_dir), settings, jobs)
    seed_numbers = tuple(range(seed, seed + seeds))
    task = Task(algorithm, env, env_options, seed_numbers, ranges if method == "pbt" else None)
    search_ = _Search(task, environment, TrialFiles(path), SweepFolder(path), parts, watcher)
    finished = _train_all(search_, programs, propose, _trainer(search_, programs, jobs, options))
    order = ranked(finished)
    draw_sweep(path / "sweep.png", f"{settings['algorithm']} on {name}", order)
    return Sweep(path, tuple(order))


def _trainer(search: _Search, programs: Programs, jobs: int, options: JobOptions) -> Trainer:
    if jobs == 1:
        return InProcessTrainer(search.task, programs, search.folder)
    return SweepProcesses(search.task, search.folder, options.engine, options.launching, jobs)


def _train_all(
    search: _Search, programs: Programs, propose: Callable[[Sequence[Trial]], list[Proposal]], trainer: Trainer
) -> list[Trial]:
    """Train one batch of trials after the other, and keep the files up to date."""
    files, watcher, finished = search.files, search.watcher, search.files.finished()
    with stopped_by_signals() as stop, contextlib.closing(trainer):
        while batch := files.pending(finished) or propose(finished):
            for proposal in batch:
                _check(search.task.algorithm, search.env, proposal)
            files.expect(batch)
            try:
                for group, result in _trained(search, programs, trainer, batch, finished, stop):
                    files.add(result.trials)
                    finished += result.trials
                    files.write_tables(finished)
                    if watcher:
                        watcher.finished(result.trials)
                    shutil.rmtree(search.folder.checkpoints(group).path, ignore_errors=True)
            except StoppedError as stopped:  # by a trial that is an ordinary run
                raise _stopped(search, stopped.exit_code - 128, finished) from None
            if stop and files.pending(finished):
                raise _stopped(search, stop.signal or 0, finished)
    return finished


def _stopped(search: _Search, signal: int, finished: Sequence[Trial]) -> StoppedError:
    done = f"stopped after {len(finished)} finished trials; the others are saved"
    return StoppedError(signal, f"{done}: continue with the same command and --run-dir {search.path}")


def _check(algorithm: Algorithm, env: Environment, proposal: Proposal) -> None:
    try:
        check_run(proposal.applied(algorithm), env, "local")
    except ConfigError as error:
        values = ", ".join(f"{name}={value}" for name, value in proposal.values.items())
        raise ConfigError(f"trial {proposal.number} ({values}): {error}") from None


def _directory(path: Path, settings: dict[str, Any], jobs: int) -> tuple[Path, int]:
    """The directory of a new sweep, or of an earlier one with the same settings; and the parts that programs are
    divided into, which remain when a sweep is continued with another number of jobs."""
    settings = json.loads(json.dumps(settings, default=str))
    if not path.exists():
        RunDirectory.new(path).write_json(SETTINGS, settings | {"parts": jobs})
        return path, jobs
    stored = read_json(path / SETTINGS)
    if stored is None:
        raise ConfigError(f"'{path}' exists and is not a sweep: choose another directory")
    for name, value in settings.items():
        if stored.get(name) != value:
            was = f"'{path}' is a sweep with {name} {stored.get(name)}, not {value}"
            raise ConfigError(f"{was}: continue it with the same settings, or choose another directory")
    return path, stored.get("parts", 1)


def _trained(
    search: _Search, programs: Programs, trainer: Trainer, batch: Sequence[Proposal], finished: list[Trial], stop: Stop
) -> Iterator[tuple[TrialGroup, GroupResult]]:
    """Train a batch, and yield the result of each group as it is finished."""
    groups = programs.groups(batch)
    if search.watcher:
        count = sum(group.traced is not None for group in groups)
        search.watcher.grouped(count, len(batch), min(trainer.processes, len(batch)))
    parts = -(-search.parts // len(groups))
    done = {trial.number for trial in finished}
    divided = [part for group in groups for part in group.split(parts) if part.proposals[0].number not in done]
    by_number = {group.proposals[0].number: group for group in divided}
    report = search.watcher.progressed if search.watcher else lambda *_: None
    for result in trainer.train(divided, lambda: bool(stop), report):
        _keep_best(search, result, finished)
        yield by_number[result.trials[0].number], result


def _keep_best(search: _Search, result: GroupResult, finished: Sequence[Trial]) -> None:
    """Write the best trial of a result as a run, if it is the best so far."""
    leader = ranked([*finished, *result.trials])[0]
    if leader not in result.trials or leader.return_mean is None:
        return
    path = search.path / BEST
    if best := result.candidate:
        algorithm = dataclasses.replace(search.task.algorithm, **best.trial.values)
        write_best(path, search.request(algorithm, best.seed), best)
    else:
        temporary = search.path / f".{BEST}"
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(best_run(search.task, leader, search.folder.runs(leader.number)), temporary)
        replace_folder(temporary, path)

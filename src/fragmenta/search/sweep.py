"""Search for good hyper-parameters: propose trials, train them in groups, keep what came out, and the best one."""

import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fragmenta.algorithms import Algorithm
from fragmenta.engines.hardware import keep_compiled_programs
from fragmenta.envs import Environment, EnvOptions, make
from fragmenta.errors import ConfigError
from fragmenta.pictures.sweep_picture import draw_sweep
from fragmenta.runs.opening import describe_algorithm, describe_environment
from fragmenta.runs.run_directory import RunDirectory, read_json
from fragmenta.search.alone import train_alone
from fragmenta.search.best import BEST, replace_folder, write_best
from fragmenta.search.groups import GroupRun, Programs, train_group
from fragmenta.search.population import check_population
from fragmenta.search.proposals import proposals
from fragmenta.search.ranges import Range, read_ranges
from fragmenta.search.trials import Proposal, Trial, TrialFiles, ranked
from fragmenta.training.options import RunOptions
from fragmenta.training.planning import Request, check_run
from fragmenta.training.stopping import Stop, StoppedError, stopped_by_signals

SETTINGS = "sweep.json"


@dataclasses.dataclass(frozen=True)
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


class SweepWatcher(Protocol):
    """Receives the progress of a sweep; the terminal view is one."""

    def grouped(self, programs: int, trials: int, alone: bool) -> None:
        """Called before a batch of trials is trained as so many programs, or one trial after the other."""
        ...

    def progressed(self, steps: int, total: int, best: float | None) -> None:
        """Called about once a second with the steps of every trial of a program and the best return among them."""
        ...

    def finished(self, trials: Sequence[Trial]) -> None:
        """Called with trials that are done."""
        ...


@dataclasses.dataclass(frozen=True)
class _Search:
    """A sweep that is ready to run."""

    algorithm: Algorithm
    requested: str | Environment
    env: Environment
    env_options: EnvOptions
    ranges: dict[str, Range]
    method: str
    seeds: tuple[int, ...]
    files: TrialFiles
    watcher: SweepWatcher | None

    @property
    def path(self) -> Path:
        """The directory of the sweep."""
        return self.files.path

    def request(self, algorithm: Algorithm, seed: int) -> Request:
        """A request to train one trial as an ordinary run."""
        name, arguments = describe_environment(self.requested, self.env, self.env_options)
        options = RunOptions(env=self.env_options, sinks=())
        return Request(algorithm, self.env, name, arguments, None, "local", None, seed, 1, options)


def sweep(
    algorithm: Algorithm,
    env: str | Environment,
    search: Mapping[str, str | Sequence[Any]],
    run_dir: str | Path,
    trials: int | None = None,
    method: str = "random",
    seeds: int = 1,
    total_steps: int | None = None,
    seed: int = 0,
    env_options: EnvOptions | None = None,
    watcher: SweepWatcher | None = None,
) -> Sweep:
    """Train trials with values from `search`, and return them ranked by the mean return of their latest episodes.

    `search` has a range for each hyper-parameter: `"log:1e-4:1e-2"`, `"uniform:0.9:1"`, or a sequence of values.
    `method` is `grid`, `random`, `tpe` or `pbt`; every trial trains `seeds` seeds, starting at `seed`. The same call
    with the same `run_dir` continues a sweep that was stopped.
    """
    if total_steps is not None:
        algorithm = dataclasses.replace(algorithm, total_steps=total_steps)
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
    groups = programs.groups(first)
    if method == "pbt":
        if groups is None:
            raise ConfigError("method 'pbt' needs an environment in JAX: use random or tpe for others")
        check_population(ranges, groups[0].traced, len(first), seeds)
    name, _ = describe_environment(env, environment, env_options)
    settings = {
        **describe_algorithm(algorithm), "env": name, "env_options": dataclasses.asdict(env_options),
        "search": {name: repr(values) for name, values in ranges.items()},
        "trials": trials, "method": method, "seeds": seeds, "seed": seed,
    }  # fmt: skip
    files = TrialFiles(_directory(Path(run_dir), settings))
    seed_numbers = tuple(range(seed, seed + seeds))
    search_ = _Search(algorithm, env, environment, env_options, ranges, method, seed_numbers, files, watcher)
    with stopped_by_signals() as stop:
        finished = files.finished()
        while batch := files.pending(finished) or propose(finished):
            for proposal in batch:
                _check(algorithm, environment, proposal)
            files.expect(batch)
            for done in _trained(search_, programs, batch, finished, stop):
                files.add(done)
                finished += done
                files.write_tables(finished)
                if watcher:
                    watcher.finished(done)
                shutil.rmtree(_group_folder(search_, done[0].number), ignore_errors=True)
    order = ranked(finished)
    draw_sweep(files.path / "sweep.png", f"{settings['algorithm']} on {name}", order)
    return Sweep(files.path, tuple(order))


def _check(algorithm: Algorithm, env: Environment, proposal: Proposal) -> None:
    try:
        check_run(proposal.applied(algorithm), env, "local")
    except ConfigError as error:
        values = ", ".join(f"{name}={value}" for name, value in proposal.values.items())
        raise ConfigError(f"trial {proposal.number} ({values}): {error}") from None


def _directory(path: Path, settings: dict[str, Any]) -> Path:
    """The directory of a new sweep, or of an earlier one with the same settings."""
    settings = json.loads(json.dumps(settings, default=str))
    if not path.exists():
        RunDirectory.new(path).write_json(SETTINGS, settings)
        return path
    stored = read_json(path / SETTINGS)
    if stored is None:
        raise ConfigError(f"'{path}' exists and is not a sweep: choose another directory")
    for name, value in settings.items():
        if stored.get(name) != value:
            was = f"'{path}' is a sweep with {name} {stored.get(name)}, not {value}"
            raise ConfigError(f"{was}: continue it with the same settings, or choose another directory")
    return path


def _group_folder(search: _Search, first: int) -> Path:
    return search.path / "pending" / f"group-{first}"


def _trained(
    search: _Search, programs: Programs, batch: Sequence[Proposal], finished: Sequence[Trial], stop: Stop
) -> Iterator[list[Trial]]:
    """Train a batch, and yield its trials as they finish."""
    groups = programs.groups(batch)
    if search.watcher:
        search.watcher.grouped(len(groups or ()), len(batch), groups is None)
    if groups is None:
        yield from _one_by_one(search, batch, finished, stop)
        return
    moving = search.ranges if search.method == "pbt" else None
    report = search.watcher.progressed if search.watcher else lambda *_: None
    for group in groups:
        folder = _group_folder(search, group.proposals[0].number)
        run = GroupRun(search.seeds, folder, stop, report, moving)
        result = train_group(programs, group, run)
        if result is None:
            raise _stopped(search, stop.signal or 0, finished)
        leader = ranked([*finished, *result.trials])[0]
        if leader in result.trials and leader.return_mean is not None:
            row = result.rows[result.best_row(leader)]
            write_best(search.path / BEST, search.request(row.algorithm, row.seed), result, leader)
        yield result.trials


def _one_by_one(
    search: _Search, batch: Sequence[Proposal], finished: Sequence[Trial], stop: Stop
) -> Iterator[list[Trial]]:
    for proposal in batch:
        folder = search.path / "runs" / str(proposal.number)
        try:
            trial, run = train_alone(
                search.algorithm, search.requested, search.env_options, proposal, search.seeds, folder
            )
        except StoppedError as stopped:
            raise _stopped(search, stopped.exit_code - 128, finished) from None
        leader = ranked([*finished, trial])[0]
        if leader is trial and trial.return_mean is not None:
            temporary = search.path / f".{BEST}"
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.copytree(run, temporary)
            replace_folder(temporary, search.path / BEST)
        yield [trial]
        if stop:
            raise _stopped(search, stop.signal or 0, finished)


def _stopped(search: _Search, signal: int, finished: Sequence[Trial]) -> StoppedError:
    done = f"stopped after {len(finished)} finished trials; the others are saved"
    return StoppedError(signal, f"{done}: continue with the same command and --run-dir {search.path}")

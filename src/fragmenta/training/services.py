"""What a run does in the background: writes metrics and checkpoints, evaluates, and watches for signals."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from fragmenta.evaluation.periodic import PeriodicEvaluation
from fragmenta.graph.show import to_mermaid
from fragmenta.runs.checkpoints import CHECKPOINTS, EPISODES, EVALUATION
from fragmenta.runs.metrics import MetricsLog
from fragmenta.runs.run_directory import RunDirectory
from fragmenta.runs.saving import Saver
from fragmenta.training.planning import PlannedRun
from fragmenta.training.stopping import Stop, stopped_by_signals


class Services(NamedTuple):
    """The background work of a run."""

    metrics: MetricsLog | None
    saver: Saver | None
    evaluation: PeriodicEvaluation | None
    stop: Stop


def write_plan(run: PlannedRun, directory: RunDirectory) -> None:
    """Write `config.json` and `graph.mmd`: from then on, the run resumes under this plan."""
    directory.write_json("config.json", run.config())
    directory.write_text("graph.mmd", to_mermaid(run.plan))


@contextlib.contextmanager
def services(run: PlannedRun, directory: RunDirectory | None) -> Iterator[Services]:
    """Write `config.json` and `graph.mmd`, and start the background writers of the run."""
    if directory is None:
        yield Services(None, None, None, Stop())
        return
    options, config = run.request.options, run.config()
    write_plan(run, directory)
    with contextlib.ExitStack() as ending:
        stop = ending.enter_context(stopped_by_signals())
        metrics = ending.enter_context(MetricsLog(directory.path, options.sinks, config))
        evaluates = bool(options.evaluation.eval_every)
        measure = EVALUATION if evaluates else EPISODES
        saver = Saver(directory.path / CHECKPOINTS, options.saving, metrics.flush, measure)
        ending.enter_context(saver)
        evaluation = None
        if evaluates:
            request = run.request
            evaluation = PeriodicEvaluation(
                directory.path,
                options.evaluation,
                run.trained,
                request.env,
                request.seed,
                saver.consider,
                metrics.add_evaluation,
            )
            ending.enter_context(evaluation)
        yield Services(metrics, saver, evaluation, stop)

"""Where the time of an iteration goes, as rows of a table."""

from fragmenta.graph.words import byte_text
from fragmenta.profiling.timings import Timings, WorkerTime, ms_text

TIME_COLUMNS = ("replica", "iteration", "busy", "waits for", "places", "rest", "sends", "receives")


def time_rows(timings: Timings) -> list[tuple[str, ...]]:
    """Per replica: the time of an iteration, how much of it is work and waiting (a line per other fragment), and the
    bytes that cross."""
    return [
        (
            worker.worker,
            ms_text(worker.iteration_ms),
            _share(worker, worker.busy_ms),
            "\n".join(f"{peer} {_share(worker, ms)}" for peer, ms in worker.wait_ms.items()) or "nothing",
            _share(worker, worker.place_ms),
            _share(worker, worker.rest_ms),
            byte_text(worker.sent_bytes) if worker.sent_bytes else "nothing",
            byte_text(worker.received_bytes) if worker.received_bytes else "nothing",
        )
        for worker in timings.workers
    ]


def _share(worker: WorkerTime, milliseconds: float) -> str:
    return f"{ms_text(milliseconds)} ({milliseconds / worker.iteration_ms:.0%})"

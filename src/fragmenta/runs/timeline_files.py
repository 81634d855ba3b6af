"""The timeline of a run in its directory: `trace.pftrace` and `timings.json`."""

import json
from collections.abc import Sequence
from pathlib import Path

from fragmenta.command import command
from fragmenta.errors import ConfigError
from fragmenta.profiling.measure import measure
from fragmenta.profiling.perfetto import to_perfetto
from fragmenta.profiling.timeline import WorkerTimeline
from fragmenta.profiling.timings import Timings
from fragmenta.runs.run_directory import write_whole

TRACE, TIMINGS = "trace.pftrace", "timings.json"


def write_timeline(run: Path, timelines: Sequence[WorkerTimeline]) -> Timings:
    """Write the timeline and its timings to a run directory, replacing earlier ones."""
    timings = measure(timelines)
    document = json.dumps(timings.as_json(), indent=2) + "\n"
    for name, content in ((TRACE, to_perfetto(timelines)), (TIMINGS, document.encode())):
        write_whole(run / name, content)
    return timings


def read_timings(run: Path) -> Timings:
    """Read the timings of a traced run."""
    try:
        return Timings.from_json(json.loads((run / TIMINGS).read_text()))
    except FileNotFoundError:
        raise ConfigError(f"'{run}' has no measured times: run '{command('trace', run)}' first") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"'{run / TIMINGS}' cannot be read: run '{command('trace', run)}' to write it again"
        ) from None

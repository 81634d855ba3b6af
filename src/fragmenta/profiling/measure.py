"""Where time went, from what workers recorded."""

import statistics
from collections.abc import Sequence

from fragmenta.profiling.recorder import Recording
from fragmenta.profiling.timings import InterfaceTime, SegmentTime, Timings, WorkerTime

NS_PER_MS = 1e6


def measure(recordings: Sequence[Recording]) -> Timings:
    """Times per worker, segment and interface. A worker that recorded no whole iteration is left out."""
    seen = [recording for recording in recordings if recording.iterations]
    return Timings(tuple(map(_worker, seen)), _segments(seen), _interfaces(seen))


def _worker(recording: Recording) -> WorkerTime:
    count = _count(recording)
    computed = sum(span.end - span.begin for span in recording.spans if span.computes)
    taken = sum(span.end - span.begin for span in recording.spans if span.kind == "take")
    waited = sum(crossing.end - crossing.begin for crossing in recording.crossings if not crossing.sends)
    waits: dict[str, float] = {}
    for crossing in recording.crossings:
        waits[crossing.peer] = waits.get(crossing.peer, 0.0) + (crossing.end - crossing.begin)
    moved = {
        sends: sum(part.bytes for c in recording.crossings if c.sends == sends for part in c.parts)
        for sends in (True, False)
    }
    return WorkerTime(
        recording.fragment,
        recording.worker,
        count,
        (recording.iterations[-1].end - recording.iterations[0].begin) / count / NS_PER_MS,
        computed / count / NS_PER_MS,
        {peer: total / count / NS_PER_MS for peer, total in waits.items()},
        (taken - waited) / count / NS_PER_MS,
        moved[True] / count,
        moved[False] / count,
    )


def _segments(recordings: Sequence[Recording]) -> tuple[SegmentTime, ...]:
    found: dict[tuple[str, str], list[float]] = {}
    counts: dict[str, int] = {}
    for recording in recordings:
        counts[recording.fragment] = counts.get(recording.fragment, 0) + _count(recording)
        # A launch is several iterations at once.
        launched = {iteration.begin: iteration.launched for iteration in recording.iterations}
        for span in filter(lambda span: span.computes, recording.spans):
            times = launched[span.begin] if span.kind == "launch" else 1
            found.setdefault((recording.fragment, span.label), []).extend([(span.end - span.begin) / times] * times)
    return tuple(
        SegmentTime(fragment, label, len(spans) / counts[fragment], statistics.median(spans) / NS_PER_MS)
        for (fragment, label), spans in found.items()
    )


def _interfaces(recordings: Sequence[Recording]) -> tuple[InterfaceTime, ...]:
    sizes: dict[tuple[str, str, int], float] = {}
    waits: dict[tuple[str, str, int], list[int]] = {}
    names: dict[tuple[str, str, int], str] = {}
    for recording in recordings:
        arrived: dict[tuple[str, str, int], int] = {}
        for crossing in recording.crossings:
            for part in () if crossing.sends else crossing.parts:
                key = crossing.peer, recording.fragment, part.value
                arrived[key] = arrived.get(key, 0) + part.bytes
                waits.setdefault(key, []).append(crossing.end - crossing.begin)
                names[key] = part.name
        for key, size in arrived.items():
            sizes[key] = sizes.get(key, 0.0) + size / _count(recording)
    return tuple(
        InterfaceTime(*key, names[key], sizes[key], statistics.median(waits[key]) / NS_PER_MS) for key in sizes
    )


def _count(recording: Recording) -> int:
    return sum(iteration.launched for iteration in recording.iterations)

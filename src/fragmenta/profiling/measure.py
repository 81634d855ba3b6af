"""Measures where time was spent, from the workers' timelines."""

import statistics
from collections.abc import Sequence

from fragmenta.profiling.timeline import WorkerTimeline
from fragmenta.profiling.timings import InterfaceTime, SegmentTime, Timings, WorkerTime

NS_PER_MS = 1e6


def measure(timelines: Sequence[WorkerTimeline]) -> Timings:
    """Times per worker, segment and interface. Workers without a complete iteration are left out."""
    complete = [timeline for timeline in timelines if timeline.iterations]
    return Timings(tuple(map(_worker, complete)), _segments(complete), _interfaces(complete))


def _worker(timeline: WorkerTimeline) -> WorkerTime:
    count = _count(timeline)
    computed = sum(span.end - span.begin for span in timeline.spans if span.computes)
    taken = sum(span.end - span.begin for span in timeline.spans if span.kind == "take")
    waited = sum(crossing.end - crossing.begin for crossing in timeline.crossings if not crossing.sends)
    waits: dict[str, float] = {}
    for crossing in timeline.crossings:
        waits[crossing.peer] = waits.get(crossing.peer, 0.0) + (crossing.end - crossing.begin)
    moved = {
        sends: sum(part.bytes for c in timeline.crossings if c.sends == sends for part in c.parts)
        for sends in (True, False)
    }
    return WorkerTime(
        timeline.fragment,
        timeline.worker,
        count,
        (timeline.iterations[-1].end - timeline.iterations[0].begin) / count / NS_PER_MS,
        computed / count / NS_PER_MS,
        {peer: total / count / NS_PER_MS for peer, total in waits.items()},
        (taken - waited) / count / NS_PER_MS,
        moved[True] / count,
        moved[False] / count,
    )


def _segments(timelines: Sequence[WorkerTimeline]) -> tuple[SegmentTime, ...]:
    durations: dict[tuple[str, str], list[float]] = {}
    counts: dict[str, int] = {}
    for timeline in timelines:
        counts[timeline.fragment] = counts.get(timeline.fragment, 0) + _count(timeline)
        # A burst covers several iterations.
        bursts = {iteration.begin: iteration.burst for iteration in timeline.iterations}
        for span in filter(lambda span: span.computes, timeline.spans):
            times = bursts[span.begin] if span.kind == "burst" else 1
            durations.setdefault((timeline.fragment, span.label), []).extend([(span.end - span.begin) / times] * times)
    return tuple(
        SegmentTime(fragment, label, len(spans) / counts[fragment], statistics.median(spans) / NS_PER_MS)
        for (fragment, label), spans in durations.items()
    )


def _interfaces(timelines: Sequence[WorkerTimeline]) -> tuple[InterfaceTime, ...]:
    sizes: dict[tuple[str, str, int], float] = {}
    waits: dict[tuple[str, str, int], list[int]] = {}
    names: dict[tuple[str, str, int], str] = {}
    for timeline in timelines:
        arrived: dict[tuple[str, str, int], int] = {}
        for crossing in timeline.crossings:
            for part in () if crossing.sends else crossing.parts:
                key = crossing.peer, timeline.fragment, part.value
                arrived[key] = arrived.get(key, 0) + part.bytes
                waits.setdefault(key, []).append(crossing.end - crossing.begin)
                names[key] = part.name
        for key, size in arrived.items():
            sizes[key] = sizes.get(key, 0.0) + size / _count(timeline)
    return tuple(
        InterfaceTime(*key, names[key], sizes[key], statistics.median(waits[key]) / NS_PER_MS) for key in sizes
    )


def _count(timeline: WorkerTimeline) -> int:
    return sum(iteration.burst for iteration in timeline.iterations)

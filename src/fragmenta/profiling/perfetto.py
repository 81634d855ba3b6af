"""Exports a timeline in Perfetto's format: a process per fragment, a thread per replica, an arrow per sent value."""

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fragmenta.profiling.timeline import Crossing, Iteration, Span, WorkerTimeline

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

SEQUENCE = 1
"""All packets form one sequence, in chronological order."""


class _Event(NamedTuple):
    time: int
    kind: str
    track: int
    name: str = ""
    category: str = ""
    details: tuple[tuple[str, str | int], ...] = ()
    begins: tuple[int, ...] = ()
    """Arrows that begin here; `ends` has those that end here."""
    ends: tuple[int, ...] = ()
    value: float = 0.0


def to_perfetto(timelines: Sequence[WorkerTimeline]) -> bytes:
    """The timelines as a trace file for ui.perfetto.dev."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    builder = TraceProtoBuilder()
    fragments = list(dict.fromkeys(timeline.fragment for timeline in timelines))
    processes = {name: 1000 * (i + 1) for i, name in enumerate(fragments)}
    for name, number in processes.items():
        process = _describe(builder, number).process
        process.pid, process.process_name = number, name
    # Readers may skip the events of a sequence without this flag on its first packet.
    builder.trace.packet[0].sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    arrows = _arrows(timelines)
    tracks = []
    for i, timeline in enumerate(timelines):
        number = processes[timeline.fragment] + 1 + i
        thread = _describe(builder, number, processes[timeline.fragment]).thread
        thread.pid, thread.tid, thread.thread_name = processes[timeline.fragment], number, timeline.worker
        tracks.append(list(_slices(timeline, number, arrows)))
    counters = {**_fills(timelines), **_lags(timelines)}
    for i, ((fragment, name), (unit, points)) in enumerate(counters.items()):
        track = 1_000_000 + i
        descriptor = _describe(builder, track, processes[fragment])
        descriptor.name, descriptor.counter.unit_name = name, unit
        tracks.append([_Event(time, "counter", track, value=value) for time, value in points])
    for event in heapq.merge(*tracks, key=lambda event: event.time):
        _write(builder.add_packet(), event)
    return builder.serialize()


Arrows = tuple[dict[tuple[str, str], list[int]], dict[tuple[str, str, int], int]]
"""Arrows that begin at each send (channel, ticket), and the one that ends at each receive (worker, channel, begin)."""


def _arrows(timelines: Sequence[WorkerTimeline]) -> Arrows:
    """One arrow per transfer with both sides recorded; a bundle that several workers pick has several arrows."""
    begins: dict[tuple[str, str], list[int]] = {
        (c.channel, c.ticket): [] for r in timelines for c in r.crossings if c.sends
    }
    ends: dict[tuple[str, str, int], int] = {}
    for timeline in timelines:
        for c in timeline.crossings:
            if not c.sends and (c.channel, c.ticket) in begins:
                ends[timeline.worker, c.channel, c.begin] = len(ends) + 1
                begins[c.channel, c.ticket].append(len(ends))
    return begins, ends


def _slices(timeline: WorkerTimeline, track: int, arrows: Arrows) -> Iterator[_Event]:
    """A worker's events in chronological order, shorter ones nested inside longer ones."""
    items = [*timeline.iterations, *timeline.spans, *timeline.crossings]
    open_items: list[Iteration | Span | Crossing] = []
    for item in sorted(items, key=lambda item: (item.begin, -item.end)):
        while open_items and open_items[-1].end <= item.begin:
            yield from _close(open_items.pop(), timeline.worker, track, arrows)
        open_items.append(item)
        yield _open(item, track, arrows)
    while open_items:
        yield from _close(open_items.pop(), timeline.worker, track, arrows)


def _open(item: Iteration | Span | Crossing, track: int, arrows: Arrows) -> _Event:
    if isinstance(item, Iteration):
        last = item.number + item.burst - 1
        name = f"iteration {item.number}" if item.burst == 1 else f"iterations {item.number} to {last}"
        return _Event(item.begin, "begin", track, name, "iteration", () if item.lag is None else (("lag", item.lag),))
    if isinstance(item, Span):
        return _Event(item.begin, "begin", track, item.label, item.kind)
    if item.sends:
        begins = tuple(arrows[0][item.channel, item.ticket])
        return _Event(item.begin, "begin", track, f"send {_label(item)} to {item.peer}", "send", _details(item), begins)
    return _Event(item.begin, "begin", track, f"wait for {_label(item)} from {item.peer}", "wait", _details(item))


def _close(item: Iteration | Span | Crossing, worker: str, track: int, arrows: Arrows) -> Iterator[_Event]:
    yield _Event(item.end, "end", track)
    if not isinstance(item, Crossing) or item.sends:
        return
    arrow = arrows[1].get((worker, item.channel, item.begin))
    if arrow is not None:
        # The arrow ends when the value has arrived, not at the wait, which begins before the value is sent.
        yield _Event(item.end, "instant", track, f"got {_label(item)}", "got", _details(item), ends=(arrow,))


def _label(crossing: Crossing) -> str:
    return crossing.parts[0].name if len(crossing.parts) == 1 else f"{len(crossing.parts)} values"


def _details(crossing: Crossing) -> tuple[tuple[str, str | int], ...]:
    values = ", ".join(f"{part.name} {part.shape}" for part in crossing.parts)
    return ("interface", crossing.between), ("values", values), ("bytes", sum(part.bytes for part in crossing.parts))


def _fills(timelines: Sequence[WorkerTimeline]) -> dict[tuple[str, str], tuple[str, list[tuple[int, float]]]]:
    """The fill of the fullest channel between two workers over time, by consumer fragment and counter name."""
    samples: dict[tuple[str, str], list[tuple[int, str, float]]] = {}
    for timeline in timelines:
        for c in timeline.crossings:
            consumer = c.peer if c.sends else timeline.fragment
            samples.setdefault((consumer, f"fill {c.between}"), []).append((c.end, c.channel, c.fill))
    counters = {}
    for key, fills in samples.items():
        latest: dict[str, float] = {}
        points = []
        for time, channel, fill in sorted(fills):
            latest[channel] = fill
            points.append((time, 100 * max(latest.values())))
        counters[key] = "%", points
    return counters


def _lags(timelines: Sequence[WorkerTimeline]) -> dict[tuple[str, str], tuple[str, list[tuple[int, float]]]]:
    """The parameter lag of each iteration, in versions."""
    counters = {}
    for timeline in timelines:
        points = [(i.end, float(i.lag)) for i in timeline.iterations if i.lag is not None]
        if points:
            counters[timeline.fragment, f"parameter lag of {timeline.worker}"] = "versions", points
    return counters


def _describe(builder: "TraceProtoBuilder", track: int, parent: int = 0) -> "TrackDescriptor":
    packet = builder.add_packet()
    packet.trusted_packet_sequence_id = SEQUENCE
    packet.track_descriptor.uuid = track
    if parent:
        packet.track_descriptor.parent_uuid = parent
    return packet.track_descriptor


def _write(packet: "TracePacket", event: _Event) -> None:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

    kinds = {
        "begin": TrackEvent.TYPE_SLICE_BEGIN,
        "end": TrackEvent.TYPE_SLICE_END,
        "instant": TrackEvent.TYPE_INSTANT,
        "counter": TrackEvent.TYPE_COUNTER,
    }
    packet.timestamp, packet.trusted_packet_sequence_id = event.time, SEQUENCE
    track_event = packet.track_event
    track_event.type, track_event.track_uuid = kinds[event.kind], event.track
    if event.kind == "counter":
        track_event.double_counter_value = event.value
    if event.name:
        track_event.name = event.name
        track_event.categories.append(event.category)
    for name, value in event.details:
        note = track_event.debug_annotations.add()
        note.name = name
        if isinstance(value, int):
            note.int_value = value
        else:
            note.string_value = value
    track_event.flow_ids.extend(event.begins)
    track_event.terminating_flow_ids.extend(event.ends)

"""A timeline in Perfetto's format: a process per fragment, a thread per replica, an arrow per value that crosses."""

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fragmenta.profiling.timeline import Crossing, Iteration, Span, WorkerTimeline

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

SEQUENCE = 1
"""All packets are one sequence, in the order of time."""


class _Event(NamedTuple):
    time: int
    kind: str
    track: int
    name: str = ""
    category: str = ""
    details: tuple[tuple[str, str | int], ...] = ()
    begins: tuple[int, ...] = ()
    """Arrows that begin here, and below those that end here."""
    ends: tuple[int, ...] = ()
    value: float = 0.0


def to_perfetto(timelines: Sequence[WorkerTimeline]) -> bytes:
    """The whole timeline, as the file that ui.perfetto.dev opens."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    builder = TraceProtoBuilder()
    fragments = list(dict.fromkeys(timeline.fragment for timeline in timelines))
    processes = {name: 1000 * (i + 1) for i, name in enumerate(fragments)}
    for name, number in processes.items():
        process = _describe(builder, number).process
        process.pid, process.process_name = number, name
    # Readers may skip the events of a sequence that does not say that it starts here.
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
"""Which arrows begin where a channel was given a ticket, and which one ends where it was taken, from when on."""


def _arrows(timelines: Sequence[WorkerTimeline]) -> Arrows:
    """One arrow for every hand-over of which both sides are here; a bundle that several pick has several."""
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
    """A worker's events in the order of time, those of a shorter time inside those of a longer one."""
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
        return _Event(item.begin, "begin", track, f"send {_what(item)} to {item.peer}", "send", _details(item), begins)
    return _Event(item.begin, "begin", track, f"wait for {_what(item)} from {item.peer}", "wait", _details(item))


def _close(item: Iteration | Span | Crossing, worker: str, track: int, arrows: Arrows) -> Iterator[_Event]:
    yield _Event(item.end, "end", track)
    if not isinstance(item, Crossing) or item.sends:
        return
    arrow = arrows[1].get((worker, item.channel, item.begin))
    if arrow is not None:
        # Not at the wait, which begins before the value is sent: at the moment at which the value is here.
        yield _Event(item.end, "instant", track, f"got {_what(item)}", "got", _details(item), ends=(arrow,))


def _what(crossing: Crossing) -> str:
    return crossing.parts[0].name if len(crossing.parts) == 1 else f"{len(crossing.parts)} values"


def _details(crossing: Crossing) -> tuple[tuple[str, str | int], ...]:
    values = ", ".join(f"{part.name} {part.shape}" for part in crossing.parts)
    return ("interface", crossing.between), ("values", values), ("bytes", sum(part.bytes for part in crossing.parts))


def _fills(timelines: Sequence[WorkerTimeline]) -> dict[tuple[str, str], tuple[str, list[tuple[int, float]]]]:
    """How full the fullest channel between two workers was, with the fragment that takes from it."""
    glances: dict[tuple[str, str], list[tuple[int, str, float]]] = {}
    for timeline in timelines:
        for c in timeline.crossings:
            consumer = c.peer if c.sends else timeline.fragment
            glances.setdefault((consumer, f"fill {c.between}"), []).append((c.end, c.channel, c.fill))
    found = {}
    for key, seen in glances.items():
        latest: dict[str, float] = {}
        points = []
        for time, channel, fill in sorted(seen):
            latest[channel] = fill
            points.append((time, 100 * max(latest.values())))
        found[key] = "%", points
    return found


def _lags(timelines: Sequence[WorkerTimeline]) -> dict[tuple[str, str], tuple[str, list[tuple[int, float]]]]:
    """How many versions old the parameters behind an iteration were."""
    found = {}
    for timeline in timelines:
        points = [(i.end, float(i.lag)) for i in timeline.iterations if i.lag is not None]
        if points:
            found[timeline.fragment, f"parameter lag of {timeline.worker}"] = "versions", points
    return found


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
    written = packet.track_event
    written.type, written.track_uuid = kinds[event.kind], event.track
    if event.kind == "counter":
        written.double_counter_value = event.value
    if event.name:
        written.name = event.name
        written.categories.append(event.category)
    for name, value in event.details:
        note = written.debug_annotations.add()
        note.name = name
        if isinstance(value, int):
            note.int_value = value
        else:
            note.string_value = value
    written.flow_ids.extend(event.begins)
    written.terminating_flow_ids.extend(event.ends)

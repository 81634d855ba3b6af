"""Reads a timeline with Perfetto's own classes: slices, arrows and counters by track."""

import dataclasses
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent


@dataclasses.dataclass(frozen=True)
class Slice:
    name: str
    category: str
    begin: int
    end: int
    depth: int
    details: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Timeline:
    processes: dict[int, str]
    threads: dict[int, str]
    parents: dict[int, int]
    slices: dict[str, list[Slice]]
    """By thread name. Nesting is checked while reading."""
    arrows: dict[int, list[tuple[str, int, str]]]
    """By flow id: the end of the arrow, the timestamp and the thread."""
    counters: dict[str, list[float]]


def read_timeline(content: bytes) -> Timeline:
    """The timeline. Fails if a slice ends without a beginning or stays open, or if time goes backwards."""
    trace = Trace()
    trace.ParseFromString(content)
    assert trace.packet[0].sequence_flags == TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    timeline = Timeline({}, {}, {}, {}, {}, {})
    names: dict[int, str] = {}
    stacks: dict[int, list[Any]] = {}
    last: dict[int, int] = {}
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in names, "a track is described once, before it is used"
            timeline.parents[track.uuid] = track.parent_uuid
            if track.HasField("process"):
                timeline.processes[track.uuid] = names[track.uuid] = track.process.process_name
            elif track.HasField("thread"):
                timeline.threads[track.uuid] = names[track.uuid] = track.thread.thread_name
                timeline.slices[track.thread.thread_name] = []
            else:
                assert track.HasField("counter")
                names[track.uuid] = track.name
            continue
        event = packet.track_event
        track, stack = event.track_uuid, stacks.setdefault(event.track_uuid, [])
        assert packet.timestamp >= last.get(track, 0)
        last[track] = packet.timestamp
        for end, numbers in (("begin", event.flow_ids), ("end", event.terminating_flow_ids)):
            for number in numbers:
                timeline.arrows.setdefault(number, []).append((end, packet.timestamp, names[track]))
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            stack.append((packet.timestamp, event))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            begin, opened = stack.pop()
            details = {
                n.name: n.int_value if n.HasField("int_value") else n.string_value for n in opened.debug_annotations
            }
            timeline.slices[names[track]].append(
                Slice(opened.name, opened.categories[0], begin, packet.timestamp, len(stack), details)
            )
        elif event.type == TrackEvent.TYPE_COUNTER:
            timeline.counters.setdefault(names[track], []).append(event.double_counter_value)
        else:
            assert event.type == TrackEvent.TYPE_INSTANT
    assert not any(stacks.values()), "every slice ends"
    return timeline

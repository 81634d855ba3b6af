"""Merge fragments and replicas that share a device, where an interface would be pure overhead."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from fragmenta.graph import Fragment


def merge(fragments: Sequence[Fragment], host: Sequence[str] = ()) -> list[Fragment]:
    """Afterwards no two replicas of a fragment share a device, and no two fragments have the same devices.

    Merged replicas become one replica with more environments; merged fragments become one with the stages of both.
    Exceptions: replicas stay separate if devices have unequal numbers of them, because parts must be of equal size;
    so do asynchronous fragments, because merging changes what they compute; and fragments with a stage in `host`,
    because one replica can use the device while another waits for its environments.
    """
    asynchronous_names = {f.name for f in fragments for d in f.delivery if not d.waits}
    asynchronous_names |= {d.source for f in fragments for d in f.delivery if not d.waits}
    merged: dict[tuple[str, ...], Fragment] = {}
    for fragment in fragments:
        if fragment.name in asynchronous_names or set(fragment.stages) & set(host):
            merged[(*fragment.devices, fragment.name)] = fragment
            continue
        fragment = dataclasses.replace(_merge_replicas(fragment), delivery=())
        twin = merged.get(fragment.devices)
        if twin is not None and fragment.replicas > 1 and fragment.axis != twin.axis:
            merged[(*fragment.devices, fragment.name)] = fragment
            continue
        if twin is not None:
            fragment = dataclasses.replace(
                twin,
                name=f"{twin.name}+{fragment.name}",
                stages=twin.stages + fragment.stages,
                axis=twin.axis or fragment.axis,
            )
        merged[fragment.devices] = fragment
    return list(merged.values())


def _merge_replicas(fragment: Fragment) -> Fragment:
    per_device = Counter(fragment.devices)
    if len(set(per_device.values())) > 1:
        return fragment
    return dataclasses.replace(fragment, devices=tuple(per_device), replicas=len(per_device))

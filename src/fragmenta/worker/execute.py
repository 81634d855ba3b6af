"""Run a fragment's steps: one worker per replica, or one for replicas that run together."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.graph import Interface
from fragmenta.graph.program import sent
from fragmenta.profiling.timeline import Stopwatch
from fragmenta.worker.backends.burst import MOST
from fragmenta.worker.channels.mailbox import Bundle
from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.deploy import Deployment, Ports
from fragmenta.worker.outcome import Outcome, Times
from fragmenta.worker.steps import REPLICA, Host, Key, Put, Rounds, Segment, Step, Take, late_takes
from fragmenta.worker.words import doing, peer, shown

SAMPLE_EVERY = 16
"""On an accelerator, wait for the results of every so many-th iteration only, to know where time goes."""
BURST_SECONDS = 0.1
"""Launches grow in iterations until one takes so long: Python is out of the way, and progress still shows."""


class DeadlineError(TimeoutError):
    """A wait took longer than its deadline; says who waited for what from whom."""


class Worker:
    """One replica at work. Holds its leaves of the state between iterations."""

    def __init__(
        self,
        deployment: Deployment,
        replica: int,
        ports: Ports,
        state: dict[int, Any],
        deadline: float,
        stopwatch: Stopwatch | None = None,
    ):
        self.deployment, self.replica, self.ports, self.deadline = deployment, replica, ports, deadline
        self.stopwatch = stopwatch
        self.times = Times()
        program = deployment.schedule.program
        self.name = program.worker(replica)
        number = jax.device_put(np.int32(replica), deployment.held[REPLICA].sharding)
        self._always: dict[Key, Any] = {REPLICA: number}
        names = {i: program.graph.state_inputs[i].id for i in state}
        self._known: dict[Key, Any] = {**self._always, **{names[i]: leaf for i, leaf in state.items()}}
        self._counters: dict[Key, list[jax.Array]] = {}
        self._iteration = 0
        self._per_burst = 1
        self._bursts: list[tuple[int, Any]] = []
        self._last_burst = time.monotonic()
        self._version = self._lag = 0
        self.late = tuple(late_takes(deployment.schedule.steps))
        self._delayed: dict[tuple[int, str], list[Any]] = {}
        self._parcels: dict[str, dict[tuple[int, str], Any]] = {}
        self._picked: dict[str, Bundle] = {}
        self._dropped = 0
        self._step: Step | None = None
        self._is_stopped = False
        self.copied: dict[int, Any] = {}
        """A copy of the state that others may read while this worker goes on; see `copy_state`."""
        sends = [i for i in sent(program.instructions) if not i.delivery.waits]
        self._is_ahead = any(i.delivery.lag for i in sends)
        self._parcel_sizes = {i.consumer: sum(other.consumer == i.consumer for other in sends) for i in sends}

    def iterate(self, at_most: int) -> list[Outcome]:
        """One training iteration, or up to `at_most` in one burst if this fragment only computes."""
        if self.deployment.burst:
            return self._burst(self.deployment.burst, at_most)
        site, program = self.deployment.site, self.deployment.schedule.program
        recorded = self.stopwatch is not None and self.stopwatch.begins(self._iteration)
        watched = recorded or site.platform == "cpu" or self._iteration % SAMPLE_EVERY == 0
        started = time.monotonic()
        busy = self._run(self.deployment.schedule.steps, watched)
        if watched:
            self.times.busy += busy
            self.times.total += time.monotonic() - started
        graph, known = program.graph, self._known
        metrics = {i: known[graph.metrics[i].id] for i in program.metrics}
        # Everything but the state goes, so that nothing grows with the number of iterations.
        kept: dict[Key, Any] = {graph.state_inputs[i].id: known[graph.state_outputs[i].id] for i in program.state}
        self._known = {**self._always, **kept}
        outcome = self._outcome(metrics)
        if self.stopwatch is not None:
            self.stopwatch.ends(self._iteration, started, outcome.lag)
        self._picked.clear()
        self._dropped, self._lag = 0, 1
        self._iteration += 1
        return [outcome]

    def _burst(self, burst: Callable[..., Any], at_most: int) -> list[Outcome]:
        """The oldest burst's iterations. The next one is under way before anybody reads this one's metrics."""
        program = self.deployment.schedule.program
        names = [program.graph.state_inputs[i].id for i in program.state]
        called = time.monotonic()
        while len(self._bursts) < 2 and (left := at_most - sum(count for count, _ in self._bursts)) > 0:
            count = min(left, self._per_burst)
            results = burst(np.int32(count), *(self._known[name] for name in names))
            self._known = dict(zip(names, results, strict=False))
            self._bursts.append((count, results[len(names) :]))
        count, kept = self._bursts.pop(0)
        rows = jax.device_get(kept)
        now = time.monotonic()
        seconds, self._last_burst = now - self._last_burst, now
        self.times.busy += now - called
        self.times.total += seconds
        if self.stopwatch is not None:
            self.stopwatch.burst(self.deployment.schedule.steps[0], self._iteration, count, called)
        if count == self._per_burst and seconds < BURST_SECONDS:
            self._per_burst = min(2 * count, MOST)
        self._iteration += count
        return [Outcome({i: row[n] for i, row in zip(program.metrics, rows, strict=True)}) for n in range(count)]

    def _outcome(self, metrics: dict[int, Any]) -> Outcome:
        for bundle in self._picked.values():
            return Outcome(metrics, self._iteration - bundle.version, bundle.replica, self._dropped)
        return Outcome(metrics, self._lag if self._is_ahead else None)

    def state(self) -> dict[int, Any]:
        """The leaves of the state that this worker keeps, by position."""
        program = self.deployment.schedule.program
        return {i: self._known[program.graph.state_inputs[i].id] for i in program.state}

    def copy_state(self) -> None:
        """Renew the copy of the state; the next iteration will donate the buffers of the state itself."""
        self.copied = {i: jnp.copy(leaf) for i, leaf in self.state().items()}

    def in_flight(self) -> dict[tuple[int, str], list[Any]]:
        """What was sent to this worker for its next iteration, between two runs of all workers."""
        waiting = [take for take in self.late if self._iteration and take.interface.key not in self._delayed]
        self._delayed |= {take.interface.key: self._receive(take) for take in waiting}
        return dict(self._delayed)

    def restore(self, in_flight: dict[tuple[int, str], list[Any]]) -> None:
        """Begin as if the iteration before had sent this, instead of with values that serve twice."""
        self._delayed, self._lag = dict(in_flight), 1

    def _run(self, steps: tuple[Step, ...], watched: bool) -> float:
        """Execute steps; the seconds spent computing, if watched."""
        known, busy = self._known, 0.0
        notes = self.stopwatch.notes if self.stopwatch is not None else None
        for step in steps:
            self._step, started = step, time.monotonic()
            if isinstance(step, Segment):
                results = self.deployment.compiled[id(step)](*[known[key] for key in step.inputs])
                if watched and results:
                    results[0].block_until_ready()  # all results of one program are ready at once
                    busy += time.monotonic() - started
                known.update(zip(step.outputs, results, strict=True))
            elif isinstance(step, Host):
                results = step.apply(*[np.asarray(known[key]) for key in step.inputs])
                busy += time.monotonic() - started
                known.update(zip(step.outputs, results, strict=True))
            elif isinstance(step, Put):
                self._put(step)
            elif isinstance(step, Take):
                self._take(step)
            else:
                busy += self._rounds(step, watched)
            if notes is not None:
                notes.append((step, started, time.monotonic()))
        return busy

    def _rounds(self, rounds: Rounds, watched: bool) -> float:
        known, busy = self._known, 0.0
        held = self.deployment.held
        if rounds.counter not in self._counters:
            place = held[rounds.counter].sharding
            self._counters[rounds.counter] = [jax.device_put(np.int32(i), place) for i in range(rounds.length)]
        counters = self._counters[rounds.counter]
        # New ones every time: what was handed on from them may still be in use.
        stacks = [(np.empty(held[stack].shape, held[stack].dtype), value) for stack, value in rounds.on_host]
        for start, param, _, _ in rounds.carried:
            known[param] = known[start]
        for buffer in rounds.buffers:
            known[buffer] = jnp.zeros(held[buffer].shape, held[buffer].dtype, device=held[buffer].sharding)
        order = range(rounds.length)
        for i in reversed(order) if rounds.reverse else order:
            if self._is_stopped:
                raise ClosedError
            known[rounds.counter] = counters[i]
            busy += self._run(rounds.body, watched)
            for stack, value in stacks:
                stack[i] = known[value]
            moved = [known[result] for _, _, result, _ in rounds.carried]
            known.update(zip((param for _, param, _, _ in rounds.carried), moved, strict=True))
        for _, param, _, last in rounds.carried:
            known[last] = known[param]
        for (key, _), (stack, _) in zip(rounds.on_host, stacks, strict=True):
            known[key] = jax.device_put(stack, held[key].sharding)
        return busy

    def _put(self, put: Put) -> None:
        interface = put.interface
        if interface.delivery.kind != "every":
            self._post(interface, self._known[put.keys[0]])
            return
        channels = self.ports.outgoing[interface.key]
        if not channels:
            return  # what all replicas have alike, the first of them sends
        values = [self._known[key] for key in put.keys]
        if put.split:
            values = put.split(*values)
        elif len(values) == 1:
            values = values * len(channels)
        for i, (channel, value) in enumerate(zip(channels, values, strict=True)):
            try:
                channel.send(value, self.deadline)
            except TimeoutError:
                raise self._late(interface, f"hand it to {peer(interface.consumer, i, channels)}") from None

    def _take(self, take: Take) -> None:
        interface = take.interface
        if interface.delivery.kind != "every":
            self._hold(take.keys[0], self._pick(interface).values[interface.key])
            return
        values = self._delayed.pop(interface.key, None)
        if values is None:
            values = self._receive(take)
            if interface.delivery.lag and self._iteration == 0:
                # From here on one iteration behind: the first values serve twice.
                self._delayed[interface.key] = values
        for key, value in zip(take.keys, values, strict=True):
            self._hold(key, value)

    def _receive(self, take: Take) -> list[Any]:
        interface, channels, values = take.interface, self.ports.incoming[take.interface.key], []
        for i, channel in enumerate(channels):
            try:
                values.append(channel.recv(self.deadline))
            except TimeoutError:
                raise self._late(interface, f"get it from {peer(interface.producer, i, channels)}") from None
        if take.join:
            values = take.join(*(jax.device_put(value, self.deployment.site.devices[0]) for value in values))
        return list(values)

    def _hold(self, key: Key, value: Any) -> None:
        place = self.deployment.held[key].sharding
        here = isinstance(value, jax.Array) and value.sharding == place
        self._known[key] = value if here else jax.device_put(value, place)

    def _post(self, interface: Interface, value: Any) -> None:
        """Put a value into the parcel for its consumer; send it off once it is complete."""
        parcel = self._parcels.setdefault(interface.consumer, {})
        parcel[interface.key] = value
        if len(parcel) < self._parcel_sizes[interface.consumer]:
            return
        version = self._iteration if interface.delivery.kind == "latest" else self._version
        try:
            bundle = Bundle(parcel, version, self.replica, self._iteration)
            self.ports.posts[interface.consumer].post(bundle, self.deadline)
        except TimeoutError:
            raise self._late(interface, f"hand it to {interface.consumer}") from None
        del self._parcels[interface.consumer]

    def _pick(self, interface: Interface) -> Bundle:
        """This iteration's bundle from a producer: the same one for all values that come from there."""
        if interface.producer in self._picked:
            return self._picked[interface.producer]
        max_lag = interface.delivery.max_lag
        while True:
            try:
                bundle = self.ports.pickups[interface.producer].pick(self.deadline)
            except TimeoutError:
                raise self._late(interface, f"get it from {interface.producer}") from None
            if interface.delivery.kind == "latest":
                self._version = bundle.version
                break
            if max_lag is None or self._iteration - bundle.version <= max_lag:
                break
            self._dropped += 1
        self._picked[interface.producer] = bundle
        return bundle

    def stop(self) -> None:
        """Let it raise ClosedError before the next round of a loop; any thread may ask for it."""
        self._is_stopped = True

    def doing(self) -> str:
        """In words, what this worker does right now; any thread may ask."""
        return doing(self._step)

    def _late(self, interface: Interface, what: str) -> DeadlineError:
        late = f"could not {what} within {self.deadline:g} s (iteration {self._iteration})"
        return DeadlineError(f"{self.name} needs {shown(interface)} and {late}")

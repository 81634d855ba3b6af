"""Run a fragment's steps: one worker per replica, or one for replicas that run together."""

import threading
import time
from collections.abc import Callable, Container, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.graph import Interface
from fragmenta.graph.program import sent
from fragmenta.profiling.timeline import Stopwatch
from fragmenta.worker.backends.burst import BURST_SECONDS, MOST
from fragmenta.worker.bundles import Bundles
from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.deploy import Deployment, Ports
from fragmenta.worker.newest import copies_of, newest
from fragmenta.worker.outcome import Outcome, Times
from fragmenta.worker.steps import REPLICA, Host, Key, Put, Rounds, Segment, Step, Take, late_takes
from fragmenta.worker.words import doing, late, peer

SAMPLE_EVERY = 16
"""On an accelerator, block to measure times only once in this many iterations: blocking costs throughput."""

COPY_SHARE = 0.05
"""The share of the time of a free-running worker that copies of its state may take: a replay is large."""


class DeadlineError(TimeoutError):
    """A wait exceeded its deadline. The message names the worker, the value and the peer."""


class Worker:
    """Executes one replica of a fragment, and holds its leaves of the state between iterations."""

    def __init__(
        self,
        deployment: Deployment,
        replica: int,
        ports: Ports,
        state: dict[int, Any],
        deadline: float,
        stopwatch: Stopwatch | None = None,
        in_place: Container[int] = (),
    ):
        self.deployment, self.replica, self.ports, self.deadline = deployment, replica, ports, deadline
        self.stopwatch = stopwatch
        self.times = Times()
        program = deployment.schedule.program
        self.name = program.worker(replica)
        number = jax.device_put(np.int32(replica), deployment.specs[REPLICA].sharding)
        self._constants: dict[Key, Any] = {REPLICA: number}
        names = {i: program.graph.state_inputs[i].id for i in state}
        self._values: dict[Key, Any] = {**self._constants, **{names[i]: leaf for i, leaf in state.items()}}
        self._counters: dict[Key, list[jax.Array]] = {}
        self._iteration, self._per_burst = 0, 1
        self._bursts: list[tuple[int, Any]] = []
        self._last_burst = time.monotonic()
        self._lag = 0
        self.late = tuple(late_takes(deployment.schedule.steps))
        self._delayed: dict[tuple[int, str], list[Any]] = {}
        self._step: Step | None = None
        self._is_stopped = False
        self.state_copy: dict[int, Any] = {}
        """A copy of the state that other threads may read while this worker continues; see `copy_state`."""
        self._copied = [i for i in program.state if i not in in_place]
        self._computes = threading.Lock()
        """Held while a segment gives away some values and returns others."""
        sends = [i for i in sent(program.instructions) if not i.delivery.waits]
        self._is_ahead = any(i.delivery.lag for i in sends)
        self._bundles = Bundles(ports, replica, sends, deadline)

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
        graph, values = program.graph, self._values
        metrics = {i: values[graph.metrics[i].id] for i in program.metrics}
        # Drop everything but the state, so that memory does not grow with the number of iterations.
        state: dict[Key, Any] = {graph.state_inputs[i].id: values[graph.state_outputs[i].id] for i in program.state}
        self._values = {**self._constants, **state}
        outcome = self._outcome(metrics)
        if self.stopwatch is not None:
            self.stopwatch.ends(self._iteration, started, outcome.lag)
        self._bundles.next_iteration()
        self._lag = 1
        self._iteration += 1
        return [outcome]

    def _burst(self, burst: Callable[..., Any], at_most: int) -> list[Outcome]:
        """The iterations of the oldest burst. The next burst is started before the metrics of this one are read."""
        program = self.deployment.schedule.program
        names = [program.graph.state_inputs[i].id for i in program.state]
        called = time.monotonic()
        while len(self._bursts) < 2 and (left := at_most - sum(count for count, _ in self._bursts)) > 0:
            count = min(left, self._per_burst)
            results = burst(np.int32(count), *(self._values[name] for name in names))
            self._values = dict(zip(names, results, strict=False))
            self._bursts.append((count, results[len(names) :]))
        count, metrics = self._bursts.pop(0)
        rows = jax.device_get(metrics)
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
        if bundle := self._bundles.first:
            return Outcome(metrics, self._iteration - bundle.version, bundle.replica, self._bundles.dropped)
        return Outcome(metrics, self._lag if self._is_ahead else None)

    def state(self) -> dict[int, Any]:
        """This worker's leaves of the state, by position."""
        program = self.deployment.schedule.program
        return {i: self._values[program.graph.state_inputs[i].id] for i in program.state}

    def held(self, leaves: Sequence[int]) -> dict[int, Any] | None:
        """The newest of these leaves, even in the midst of an iteration; None if their memory is given away."""
        return newest(self.deployment.schedule.program, self._values, leaves)

    def live(self, leaves: Sequence[int]) -> dict[int, np.ndarray]:
        """Copies in host memory of the newest of these leaves; callable from any thread."""
        if (copies := copies_of(lambda: self.held(leaves), self._computes, self.deadline)) is None:
            raise DeadlineError(f"{self.name} did not finish an iteration within {self.deadline:g} s")
        return copies

    def copy_state(self) -> None:
        """Refresh the copy of what does not stay in place; the next iteration donates the buffers of the state."""
        state = self.state()
        self.state_copy = jax.block_until_ready({i: jnp.copy(state[i]) for i in self._copied})

    def run_freely(self, is_ending: Callable[[], bool]) -> None:
        """Train without reports until `is_ending`, with a recent copy of the state at any time."""
        copy_again = 0.0
        while not is_ending():
            self.iterate(1)
            if (now := time.monotonic()) >= copy_again:
                self.copy_state()
                copy_again = time.monotonic() + (time.monotonic() - now) / COPY_SHARE
        self.copy_state()

    def in_flight(self) -> dict[tuple[int, str], list[Any]]:
        """Values already sent to this worker for its next iteration; call it while all workers are paused."""
        waiting = [take for take in self.late if self._iteration and take.interface.key not in self._delayed]
        self._delayed |= {take.interface.key: self._receive(take) for take in waiting}
        return dict(self._delayed)

    def restore(self, in_flight: dict[tuple[int, str], list[Any]]) -> None:
        """Start with these values in flight from the iteration before, instead of using the first values twice."""
        self._delayed, self._lag = dict(in_flight), 1

    def _run(self, steps: tuple[Step, ...], watched: bool) -> float:
        """Execute steps; returns the seconds spent computing, if watched."""
        values, busy = self._values, 0.0
        notes = self.stopwatch.notes if self.stopwatch is not None else None
        for step in steps:
            self._step, started = step, time.monotonic()
            if isinstance(step, Segment):
                with self._computes:
                    results = self.deployment.compiled[id(step)](*[values[key] for key in step.inputs])
                    values.update(zip(step.outputs, results, strict=True))
                if watched and results:
                    results[0].block_until_ready()  # all results of one program are ready at once
                    busy += time.monotonic() - started
            elif isinstance(step, Host):
                results = step.apply(*[np.asarray(values[key]) for key in step.inputs])
                busy += time.monotonic() - started
                values.update(zip(step.outputs, results, strict=True))
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
        values, busy = self._values, 0.0
        specs = self.deployment.specs
        if rounds.counter not in self._counters:
            place = specs[rounds.counter].sharding
            self._counters[rounds.counter] = [jax.device_put(np.int32(i), place) for i in range(rounds.length)]
        counters = self._counters[rounds.counter]
        # Allocated every time: slices of the previous ones may still be in use.
        stacks = [(np.empty(specs[stack].shape, specs[stack].dtype), value) for stack, value in rounds.on_host]
        for start, param, _, _ in rounds.carried:
            values[param] = values[start]
        values |= {key: jax.device_put(jnp.copy(values[key]), specs[key].sharding) for key in rounds.copied}
        for buffer in rounds.buffers:
            values[buffer] = jnp.zeros(specs[buffer].shape, specs[buffer].dtype, device=specs[buffer].sharding)
        order = range(rounds.length)
        for i in reversed(order) if rounds.reverse else order:
            if self._is_stopped:
                raise ClosedError
            values[rounds.counter] = counters[i]
            busy += self._run(rounds.body, watched)
            for stack, value in stacks:
                stack[i] = values[value]
            moved = [values[result] for _, _, result, _ in rounds.carried]
            values.update(zip((param for _, param, _, _ in rounds.carried), moved, strict=True))
        for _, param, _, last in rounds.carried:
            values[last] = values[param]
        for (key, _), (stack, _) in zip(rounds.on_host, stacks, strict=True):
            values[key] = jax.device_put(stack, specs[key].sharding)
        return busy

    def _put(self, put: Put) -> None:
        interface = put.interface
        if interface.delivery.kind != "every":
            self._post(interface, self._values[put.keys[0]])
            return
        channels = self.ports.outgoing[interface.key]
        if not channels:
            return  # replicas hold it whole: only the first of them sends it
        values = [self._values[key] for key in put.keys]
        if put.split:
            values = put.split(*values)
        elif len(values) == 1:
            values = values * len(channels)
        for i, (channel, value) in enumerate(zip(channels, values, strict=True)):
            try:
                channel.send(value, self.deadline)
            except TimeoutError:
                raise self._late(interface, "send", f"to {peer(interface.consumer, i, channels)}") from None

    def _take(self, take: Take) -> None:
        interface = take.interface
        if interface.delivery.kind != "every":
            self._hold(take.keys[0], self._pick(interface))
            return
        values = self._delayed.pop(interface.key, None)
        if values is None:
            values = self._receive(take)
            if interface.delivery.lag and self._iteration == 0:
                # From here on one iteration behind: the first values are used twice.
                self._delayed[interface.key] = values
        for key, value in zip(take.keys, values, strict=True):
            self._hold(key, value)

    def _receive(self, take: Take) -> list[Any]:
        interface, channels, values = take.interface, self.ports.incoming[take.interface.key], []
        for i, channel in enumerate(channels):
            try:
                values.append(channel.recv(self.deadline))
            except TimeoutError:
                raise self._late(interface, "receive", f"from {peer(interface.producer, i, channels)}") from None
        if take.join:
            values = take.join(*(jax.device_put(value, self.deployment.site.devices[0]) for value in values))
        return list(values)

    def _hold(self, key: Key, value: Any) -> None:
        place = self.deployment.specs[key].sharding
        if isinstance(value, jax.Array):
            here = value.sharding == place
        else:  # a program on a CPU takes it from where it is, for a fifth of what device_put costs
            here = self.deployment.site.platform == "cpu" and len(self.deployment.site.devices) == 1
        self._values[key] = value if here else jax.device_put(value, place)

    def _post(self, interface: Interface, value: Any) -> None:
        try:
            self._bundles.post(interface, value, self._iteration)
        except TimeoutError:
            raise self._late(interface, "send", f"to {interface.consumer}") from None

    def _pick(self, interface: Interface) -> Any:
        try:
            return self._bundles.pick(interface, self._iteration).values[interface.key]
        except TimeoutError:
            raise self._late(interface, "receive", f"from {interface.producer}") from None

    def stop(self) -> None:
        """Make it raise ClosedError before the next round of a loop; callable from any thread."""
        self._is_stopped = True

    def doing(self) -> str:
        """What this worker is doing right now, as text; callable from any thread."""
        return doing(self._step)

    def _late(self, interface: Interface, action: str, peer: str) -> DeadlineError:
        return DeadlineError(late(self.name, action, interface, peer, self.deadline, self._iteration))

"""Times the channels and collectives of runs on the machine at hand: those between threads, and those of processes."""

import contextlib
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.engines.limits import usable_cores
from fragmenta.graph.layout import WHOLE
from fragmenta.planner.channels import ChannelCost, is_noted, keep_costs
from fragmenta.planner.profile import Profile
from fragmenta.worker.backends.collectives import compile_with_collectives
from fragmenta.worker.backends.distributed import join
from fragmenta.worker.channels.exchange import PipeExchange
from fragmenta.worker.channels.memory import ClosedError, MemoryChannel
from fragmenta.worker.channels.receiving import ArrayReceiver
from fragmenta.worker.channels.sending import ArraySender
from fragmenta.worker.channels.wire import packed_size

SIZES = 64, 2**16, 2**22
"""Bytes of the values that are sent."""
SECONDS = 0.04
"""How long a size is measured, at least."""
REPEATS = 12
"""How often so many exchanges follow each other. Their mean counts: where processes have no core to spare, a part of
the exchanges waits for a tick of the scheduler, which takes ten times as long."""
PATIENCE = 30.0
"""How long processes may take for what takes them about two seconds."""
MOST_MEMBERS = 16
"""Collectives of more processes are not measured."""
ADDRESS, ANSWER = "127.0.0.1", "fragmenta: "
PAUSE = 3e-4
"""How long the other process waits for a message, as in a run: a core that has been idle takes time to wake up."""


def measure_channels(profile: Profile, kinds: Sequence[str]) -> None:
    """Measure those of these kinds that the profile does not have; what cannot be measured stays an estimate."""
    timers: Mapping[str, Callable[[], dict[str, list[ChannelCost]]]] = {
        "threads": _threads,
        "devices": _devices,
        "processes": _pipes,
        "collectives": _collectives,
    }
    for kind in kinds:
        if not is_noted(profile, kind):
            costs = {}
            with contextlib.suppress(OSError, RuntimeError, ValueError, ClosedError):
                costs = timers[kind]()
            keep_costs(profile, kind, costs)


def _threads() -> dict[str, list[ChannelCost]]:
    there, back = MemoryChannel(), MemoryChannel()
    value = jnp.zeros(16)

    def echo() -> None:
        with contextlib.suppress(ClosedError):
            while True:
                back.send(there.recv(PATIENCE), PATIENCE)

    def around() -> None:
        there.send(value, PATIENCE)
        back.recv(PATIENCE)

    alone = MemoryChannel()

    def pass_on() -> None:
        alone.send(value, PATIENCE)
        alone.recv(PATIENCE)

    work = _median(pass_on) / 2
    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    trip = _median(around) / 2
    there.close()
    thread.join()
    compiled = jax.jit(lambda values: [x + 1 for x in values]).lower([value] * 8).compile()
    call = _median(lambda: compiled([value] * 8))
    python = _median(_some_python)
    reference = ChannelCost(0, work, work, max(0.0, trip - 2 * work))
    return {"reference": [reference], "call": [ChannelCost(0, call)], "python": [ChannelCost(0, python)]}


def _some_python() -> int:
    """Work as workers do between their steps: its speed says how fast the interpreter is here."""
    table: dict[int, tuple[int, ...]] = {}
    for i in range(3000):
        table[i % 100] = (i, *table.get(i % 7, ())[:4])
    return len(table)


def _devices() -> dict[str, list[ChannelCost]]:
    devices = jax.local_devices()
    if len(devices) < 2:
        return {}
    costs = []
    for size in SIZES:
        value = jax.device_put(np.zeros(size, np.uint8), devices[0])
        costs.append(
            ChannelCost(size, receive=_median(lambda v=value: jax.device_put(v, devices[1]).block_until_ready()))
        )
    return {"device": costs}


def _pipes() -> dict[str, list[ChannelCost]]:
    """Between this process and another one, which sends back what it receives."""
    token, size = secrets.token_bytes(16), packed_size([(np.dtype(np.uint8), (SIZES[-1],))])
    exchange = PipeExchange(ADDRESS, token)
    ends = {name: exchange.receiver(name, size, 2, name == "pipe") for name in ("pipe", "socket")}
    order = {"token": token.hex(), "size": size, "addresses": {name: address for name, (_, address) in ends.items()}}
    process = _start("echo", order)
    try:
        addresses = _answer(process)
        costs = {}
        for name, (pipe, _) in ends.items():
            sender = ArraySender(exchange.sender(addresses[name], PATIENCE))
            costs[name] = [_pipe_cost(sender, ArrayReceiver(pipe), size, name == "pipe") for size in SIZES]
        return costs
    finally:
        _end([process])
        exchange.close()


def _pipe_cost(sender: ArraySender, receiver: ArrayReceiver, size: int, is_whole: bool) -> ChannelCost:
    """`is_whole`: whether a message arrives at once; else what is large is received while it is sent."""
    value, sends, receives = np.zeros(size, np.uint8), [], []

    trips: list[float] = []

    def around(waits: bool) -> None:
        end = time.perf_counter() + PAUSE
        while time.perf_counter() < end:
            pass
        began = time.perf_counter()
        sender.send(value, PATIENCE)
        sent = time.perf_counter()
        while waits and not receiver.fill():
            pass
        arrived = time.perf_counter()
        receiver.recv(PATIENCE)
        trips.append(time.perf_counter() - began)
        sends.append(sent - began)
        if waits:
            receives.append(time.perf_counter() - arrived)

    _median(lambda: around(False))
    trip = statistics.median(trips) / 2
    _median(lambda: around(True))
    send = min(trip, statistics.median(sends))
    receive = min(trip - send, statistics.median(receives)) if is_whole or size <= SIZES[1] else 0.0
    return ChannelCost(size, send, receive, trip - send - receive)


def echo() -> None:
    """The other process of `_pipes`."""
    order = json.loads(sys.stdin.readline())
    exchange = PipeExchange(ADDRESS, bytes.fromhex(order["token"]))
    ends = {name: exchange.receiver(name, order["size"], 2, name == "pipe") for name in order["addresses"]}
    print(ANSWER + json.dumps({name: address for name, (_, address) in ends.items()}), flush=True)

    def send_back(name: str) -> None:
        sender = ArraySender(exchange.sender(order["addresses"][name], PATIENCE))
        receiver = ArrayReceiver(ends[name][0])
        with contextlib.suppress(ClosedError):
            while True:
                sender.send(receiver.recv(PATIENCE), PATIENCE)

    threads = [threading.Thread(target=send_back, args=(name,), daemon=True) for name in ends]
    for thread in threads:
        thread.start()
    sys.stdin.read()  # until the other process has what it wants, or is gone
    os._exit(0)


def _collectives() -> dict[str, list[ChannelCost]]:
    """Among as many processes as there are cores, and among the first few of them."""
    count = max(2, min(usable_cores(), MOST_MEMBERS))
    with socket.create_server((ADDRESS, 0)) as probe:
        coordinator = f"{ADDRESS}:{probe.getsockname()[1]}"
    processes = [_start("take_part", {"coordinator": coordinator, "count": count, "index": i}) for i in range(count)]
    try:
        rows = _answer(processes[0])
    finally:
        _end(processes)
    return {
        f"collective of {members}": [ChannelCost(size, way=way) for size, way in zip(SIZES, ways, strict=True)]
        for members, ways in rows
    }


def take_part() -> None:
    """One of the processes of `_collectives`."""
    order = json.loads(sys.stdin.readline())
    count, index = order["count"], order["index"]
    join(order["coordinator"], order["coordinator"], count, index, ADDRESS)
    first = [next(d for d in jax.devices("cpu") if d.process_index == i) for i in range(count)]
    rows = []
    for members in sorted({2**i for i in range(1, count.bit_length())} | {count}):
        if index < members:
            rows.append((members, [_exchange_seconds(first[:members], size) for size in SIZES]))
    if index == 0:
        print(ANSWER + json.dumps(rows), flush=True)
    sys.stdin.read()


def _exchange_seconds(members: Sequence[Any], size: int) -> float:
    times = 2 + 2**20 // (size + 2**15)
    shape = jax.ShapeDtypeStruct((size // 4,), np.float32)

    def exchanged(x: jax.Array) -> tuple[jax.Array, ...]:
        return (jax.lax.fori_loop(0, times, lambda _, y: jax.lax.psum(y, "members") / len(members), x),)

    compiled = compile_with_collectives(exchanged, members, "members", [(shape, WHOLE)], [WHOLE], ())
    value = jnp.ones(shape.shape, shape.dtype)
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        compiled(value)[0].block_until_ready()
        seconds.append((time.perf_counter() - began) / times)
    return statistics.fmean(seconds[REPEATS // 4 :])


def _median(call: Callable[[], Any]) -> float:
    """Seconds of a call, after a few that do not count."""
    for _ in range(3):
        call()
    seconds: list[float] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(seconds) < 5:
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _start(what: str, order: dict[str, Any]) -> subprocess.Popen[str]:
    """A process that runs a function of this module, with an order on its standard input."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", f"from fragmenta.planner.channel_timing import {what}; {what}()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    return process


def _answer(process: subprocess.Popen[str]) -> Any:
    """What a process prints as a line of JSON, beside what its libraries print; RuntimeError if it is not in time."""
    timer = threading.Timer(PATIENCE, process.kill)
    timer.start()
    try:
        for line in process.stdout or ():
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        raise RuntimeError("the process ended too early")
    finally:
        timer.cancel()


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()

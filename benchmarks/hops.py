"""Round-trip latency of an array to another process and back, by transport, for sizes up to 64 MB.

All transports take turns for every size. The other process returns a copy of the array; Ray's object store returns
read-only arrays without a copy.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

# Ray reads this on import: listen on the loopback address only.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import numpy as np

from fragmenta.worker.channels.exchange import PipeExchange
from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.channels.receiving import ArrayReceiver
from fragmenta.worker.channels.sending import ArraySender
from fragmenta.worker.channels.wire import packed_size

SIZES = {"1 KB": 1 << 10, "16 KB": 1 << 14, "256 KB": 1 << 18, "1 MB": 1 << 20, "16 MB": 1 << 24, "64 MB": 1 << 26}
TOKEN = b"this benchmark's, on loopback only"


def echo(address: dict[str, Any], size: int) -> None:
    """The other process of a pipe: sends back what it receives."""
    exchange = PipeExchange("127.0.0.1", TOKEN)
    there = ArraySender(exchange.sender(address, 20))
    pipe, ours = exchange.receiver("back", size, 2, address["kind"] == "shared")
    print(json.dumps(ours), flush=True)
    here = ArrayReceiver(pipe)
    try:
        while True:
            there.send(here.recv(600), 60)
    except ClosedError:
        exchange.close()


class OverPipes:
    """A round trip through two of our pipes."""

    def __init__(self, same_node: bool, count: int) -> None:
        self._exchange = PipeExchange("127.0.0.1", TOKEN)
        size = packed_size([(np.dtype(np.uint8), (count,))])
        pipe, address = self._exchange.receiver("there", size, 2, same_node)
        command = [sys.executable, __file__, "--echo", json.dumps(address), "--size", str(size)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._receiver = ArrayReceiver(pipe)
        self._sender = ArraySender(self._exchange.sender(json.loads(self._process.stdout.readline()), 20))

    def __call__(self, value: np.ndarray) -> np.ndarray:
        self._sender.send(value, 60)
        return self._receiver.recv(60)

    def close(self) -> None:
        self._exchange.close()
        self._process.wait()


class OverRay:
    """A round trip through one of Ray's transports."""

    def __init__(self, way: str, count: int) -> None:
        import ray
        from ray.dag import InputNode

        @ray.remote(num_cpus=0)
        class Echo:
            def give(self, value: Any) -> Any:
                return value

            def store(self, references: list[Any]) -> list[Any]:
                return [ray.put(ray.get(references[0]))]

        self._ray, self._way, self._actor, self._graph = ray, way, Echo.remote(), None
        if way == "compiled graph":
            with InputNode() as array:
                graph = self._actor.give.bind(array)
            self._graph = graph.experimental_compile(_buffer_size_bytes=count + (1 << 16))

    def __call__(self, value: np.ndarray) -> np.ndarray:
        if self._graph is not None:
            return self._ray.get(self._graph.execute(value))
        if self._way == "object store":
            return self._ray.get(self._ray.get(self._actor.store.remote([self._ray.put(value)]))[0])
        return self._ray.get(self._actor.give.remote(value))

    def close(self) -> None:
        if self._graph is not None:
            self._graph.teardown()
        self._ray.kill(self._actor)


def measure(make: Callable[[], Any], count: int, seconds: float) -> tuple[float, float] | str:
    """Median and 99th percentile of a round trip in seconds, or the reason why it failed."""
    value = np.random.default_rng(0).integers(0, 256, count, np.uint8)
    hop = None
    try:
        hop = make()
        for _ in range(5):
            assert np.array_equal(hop(value), value)
        times = []
        end = time.perf_counter() + seconds
        while (time.perf_counter() < end or len(times) < 10) and len(times) < 20_000:
            began = time.perf_counter()
            hop(value)
            times.append(time.perf_counter() - began)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:60]
    finally:
        if hop is not None:
            hop.close()
    return float(np.median(times)), float(np.quantile(times, 0.99))


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1e-2 else f"{seconds * 1e3:.0f} ms"


def ways(stack: contextlib.ExitStack, no_ray: bool) -> dict[str, Callable[[int], Any]]:
    """A factory for each transport, by array size in bytes; Ray runs until the stack is closed."""
    makers: dict[str, Callable[[int], Any]] = {
        "shared memory pipe": lambda count: OverPipes(True, count),
        "socket pipe": lambda count: OverPipes(False, count),
    }
    if no_ray:
        return makers
    import ray

    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=2,
        object_store_memory=1 << 30,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)),
    )
    stack.callback(ray.shutdown)
    for way in ("compiled graph", "actor call", "object store"):
        makers[f"Ray {way}"] = lambda count, way=way: OverRay(way, count)
    return makers


def compare(makers: dict[str, Callable[[int], Any]], seconds: float) -> dict[str, list[str]]:
    """For each transport, the formatted latencies of all sizes."""
    table: dict[str, list[str]] = {name: [] for name in makers}
    for count in SIZES.values():
        for name, make in makers.items():
            result = measure(lambda make=make, count=count: make(count), count, seconds)
            table[name].append(result if isinstance(result, str) else " / ".join(map(duration, result)))
            print(f"{name} {count}: {table[name][-1]}", file=sys.stderr, flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each way and size")
    parser.add_argument("--no-ray", action="store_true", help="our pipes alone")
    options = parser.parse_args()
    if options.echo:
        echo(json.loads(options.echo), options.size)
        return
    print(f"a round trip on {os.cpu_count()} cores: median / 99th percentile\n")
    with contextlib.ExitStack() as stack:
        table = compare(ways(stack, options.no_ray), options.seconds)
    print("| way |" + "".join(f" {size} |" for size in SIZES))
    print("|---|" + "---|" * len(SIZES), flush=True)
    for name, row in table.items():
        print(f"| {name} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()

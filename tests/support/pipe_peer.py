"""The peer process of the pipe tests: `python pipe_peer.py BEHAVIOUR ADDRESS`, with the address as JSON."""

import json
import os
import sys
import time
from typing import Any

import numpy as np

from fragmenta.worker.channels.exchange import PipeExchange
from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.channels.receiving import ArrayReceiver
from fragmenta.worker.channels.sending import ArraySender

TOKEN = b"a token that only tests have, yes"


def main() -> None:
    """Print our address, then run the behaviour."""
    behaviour, address = sys.argv[1], json.loads(sys.argv[2])
    exchange = PipeExchange("127.0.0.1", TOKEN)
    there = ArraySender(exchange.sender(address, 20))
    pipe, ours = exchange.receiver("back", 1 << 22, 2, address["kind"] == "shared")
    print(json.dumps(ours), flush=True)
    here = ArrayReceiver(pipe)
    if behaviour == "echo":
        _echo(here, there)
    elif behaviour == "two":
        here.recv(20)
        for i in range(2):
            there.send(np.int32(i), 20)
        os._exit(0)  # exits without closing anything
    elif behaviour == "count":
        for i in range(100_000):
            there.send(np.full(1000, i), 60)
    elif behaviour == "sleep":
        time.sleep(600)
    exchange.close()


def _echo(here: Any, there: Any) -> None:
    try:
        while True:
            there.send(here.recv(60), 60)
    except ClosedError:
        pass


if __name__ == "__main__":
    main()

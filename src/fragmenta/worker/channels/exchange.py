"""Creates the ends of pipes to and from this process."""

import contextlib
import ipaddress
import secrets
import socket
import threading
import time
from typing import Any

from fragmenta.worker.channels.hello import HelloError, accept_hello, check_name, say_hello
from fragmenta.worker.channels.pipe import Pipe
from fragmenta.worker.channels.shared import SharedPipe
from fragmenta.worker.channels.sockets import SocketReceiver, SocketSender

LEAST_TOKEN = 16
MOST_CALLERS = 64
"""Maximum number of handshakes in progress; further callers are dropped and may retry."""
_RETRY_SECONDS = 0.1


class PipeExchange:
    """One per process. It opens its listener, on one address only, with the first pipe from another machine."""

    def __init__(self, bind: str, token: bytes) -> None:
        if ipaddress.ip_address(bind).is_unspecified:
            raise ValueError(f"{bind} means every address of this machine: give one specific address to listen on")
        if len(token) < LEAST_TOKEN:
            raise ValueError(f"a token of {len(token)} bytes can be guessed: use at least {LEAST_TOKEN} random bytes")
        self._bind, self._token = bind, token
        self._lock = threading.Lock()
        self._closed = False
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._unconnected: dict[str, SocketReceiver] = {}
        """Receivers whose senders have not connected yet, by name."""
        self._pipes: list[Pipe] = []
        self._callers: dict[threading.Thread, socket.socket] = {}

    def receiver(self, name: str, size: int, capacity: int, same_node: bool) -> tuple[Pipe, dict[str, Any]]:
        """The receiving end of a new pipe for messages of up to `size` bytes, and its address as a plain dictionary."""
        check_name(name)
        if same_node:
            pipe, address = SharedPipe.receiver(size, capacity)
            return self._register(pipe), {**address, "name": name}
        # Names are unique: the sender of an old pipe must not connect to the pipe that replaced it.
        unique = check_name(f"{name}~{secrets.token_hex(8)}")
        pipe = SocketReceiver(size, capacity)
        with self._lock:
            host, port = self._listen()
            self._unconnected[unique] = pipe
        address = {"kind": "socket", "host": host, "port": port, "name": unique, "size": size, "capacity": capacity}
        return self._register(pipe), address

    def sender(self, address: dict[str, Any], timeout: float) -> Pipe:
        """The sending end of a pipe. TimeoutError or HelloError if connecting fails, ClosedError without a receiver."""
        if address["kind"] == "shared":
            return self._register(SharedPipe.sender(address))
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no answer from {address['host']}:{address['port']}")
            try:
                connection = socket.create_connection((address["host"], address["port"]), left)
                break
            except OSError:
                time.sleep(min(_RETRY_SECONDS, left))
        pipe = SocketSender(address["size"], address["capacity"])
        try:
            say_hello(connection, self._token, address["name"], max(end - time.monotonic(), 0.001))
            pipe.attach(connection)
        except BaseException:
            connection.close()
            raise
        return self._register(pipe)

    def close(self) -> None:
        """Stop listening, and close every pipe."""
        with self._lock:
            self._closed = True
            listener, acceptor, self._listener = self._listener, self._acceptor, None
            callers, pipes = dict(self._callers), list(self._pipes)
            self._unconnected.clear()
        if listener is not None and acceptor is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            acceptor.join()
            listener.close()
        for thread, connection in callers.items():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()
        for pipe in pipes:
            pipe.close()

    def _register(self, pipe: Any) -> Any:
        with self._lock:
            if not self._closed:
                self._pipes = [other for other in self._pipes if not other.is_closed] + [pipe]
                return pipe
        pipe.close()
        raise RuntimeError("this exchange is closed")

    def _listen(self) -> tuple[str, int]:
        """The host and port that we listen on; call it with the lock held."""
        if self._closed:
            raise RuntimeError("this exchange is closed")
        if self._listener is None:
            family = socket.AF_INET6 if ":" in self._bind else socket.AF_INET
            self._listener = socket.create_server((self._bind, 0), family=family, backlog=128)
            arguments = (self._listener,)
            self._acceptor = threading.Thread(
                target=self._accept, args=arguments, name="fragmenta-exchange", daemon=True
            )
            self._acceptor.start()
        host, port = self._listener.getsockname()[:2]
        return host, port

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(_RETRY_SECONDS)  # for example no file descriptor left: callers retry or give up
                continue
            thread = threading.Thread(target=self._greet, args=(connection,), name="fragmenta-hello", daemon=True)
            with self._lock:
                if self._closed or len(self._callers) >= MOST_CALLERS:
                    connection.close()
                    continue
                self._callers[thread] = connection
                thread.start()

    def _greet(self, connection: socket.socket) -> None:
        """Authenticate one caller and attach it to its pipe, or drop it."""
        try:
            name = accept_hello(connection, self._token)
            with self._lock:
                pipe = self._unconnected.pop(name, None)
            attached = pipe is not None and pipe.attach(connection)
        except (HelloError, TimeoutError):
            attached = False
        if not attached:
            connection.close()
        with self._lock:
            del self._callers[threading.current_thread()]

"""A pipe between two processes of one machine: a ring of slots in anonymous shared memory.

0    magic, capacity, size, nonce
64   sent: number of messages put into the ring
128  freed: number of slots freed
192  the sender is closed      256  the receiver is closed      320  the sender's process id, 0 until it connects
4096 slots, each of 64 bytes with the message's length, then the message
"""

import mmap
import os
import secrets
import select
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragmenta.worker.channels.futex import Word, fence
from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.channels.pipe import BIG, check_size, new_memory, take_turn, time_left
from fragmenta.worker.channels.wire import WireError
from fragmenta_core.arrays import nameless_file

LOOK_SECONDS = 0.05
"""How often a waiting thread checks whether the peer is still alive."""
_HEAD = struct.Struct("<8sQQ16s")
_MAGIC = b"FRGRING\x01"
_SENT, _FREED, _SENDER_CLOSED, _RECEIVER_CLOSED, _SENDER = 64, 128, 192, 256, 320
_RECEIVER_WAITS, _SENDER_WAITS = 384, 448
_SLOTS, _SLOT_HEADER = 4096, 64
_LENGTH = struct.Struct("<Q")


def _stride(size: int) -> int:
    return _SLOT_HEADER + -(-size // 64) * 64


class SharedPipe:
    """One end of the ring. `receiver` creates the ring; `sender` opens it by its address."""

    def __init__(self, memory: mmap.mmap, capacity: int, size: int, sends: bool) -> None:
        self._capacity, self._size, self._sends = capacity, size, sends
        self._round = 2**32 // capacity * capacity
        """Where counters wrap around: a multiple of the capacity, so that slots stay in order."""
        self._memory, self._stride = memoryview(memory), _stride(size)
        self._sent, self._freed = Word(memory, _SENT), Word(memory, _FREED)
        self._receiver_waits, self._sender_waits = Word(memory, _RECEIVER_WAITS), Word(memory, _SENDER_WAITS)
        own_flag, peer_flag = (_SENDER_CLOSED, _RECEIVER_CLOSED) if sends else (_RECEIVER_CLOSED, _SENDER_CLOSED)
        self._own_closed, self._peer_closed, self._peer = (
            Word(memory, own_flag),
            Word(memory, peer_flag),
            Word(memory, _SENDER),
        )
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._closed = False
        self._fence = fence()
        self._count = 0
        """Messages that this end sent or freed; private, since the peer could write anything into the memory."""
        self._taken = False
        self._descriptor = -1
        self._process: int | None = None

    @staticmethod
    def receiver(size: int, capacity: int) -> tuple["SharedPipe", dict[str, Any]]:
        """The receiving end of a new ring, and its address for a sender process of the same user."""
        if size < 1 or capacity < 1:
            raise ValueError(f"a pipe of {capacity} slots of {size} bytes: give at least 1 of each")
        descriptor = nameless_file(_SLOTS + capacity * _stride(size))
        nonce = secrets.token_bytes(16)
        memory = mmap.mmap(descriptor, 0)
        _HEAD.pack_into(memory, 0, _MAGIC, capacity, size, nonce)
        pipe = SharedPipe(memory, capacity, size, sends=False)
        pipe._descriptor = descriptor
        address = {"kind": "shared", "pid": os.getpid(), "descriptor": descriptor, "nonce": nonce.hex()}
        return pipe, address

    @staticmethod
    def sender(address: dict[str, Any]) -> "SharedPipe":
        """The sending end. ClosedError if the receiver is gone."""
        pid, nonce = int(address["pid"]), bytes.fromhex(address["nonce"])
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            raise ClosedError from None
        try:
            path = f"/proc/{pid}/fd/{int(address['descriptor'])}"
            if not os.readlink(path).startswith("/memfd:"):
                raise ClosedError  # the descriptor now refers to another file, which must not be opened
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                memory = mmap.mmap(descriptor, 0)
            finally:
                os.close(descriptor)
            magic, capacity, size, ring_nonce = _HEAD.unpack_from(memory) if len(memory) >= _SLOTS else (b"", 0, 0, b"")
            if (magic, ring_nonce) != (_MAGIC, nonce) or len(memory) != _SLOTS + capacity * _stride(size):
                raise ClosedError  # the process id or the descriptor has been reused
            pipe = SharedPipe(memory, capacity, size, sends=True)
        except BaseException as error:
            os.close(process)
            if isinstance(error, (FileNotFoundError, ProcessLookupError, ValueError)):
                raise ClosedError from None
            raise
        pipe._process = process
        pipe._peer.cell.value = os.getpid()
        return pipe

    def send(self, parts: Sequence[bytes | memoryview], timeout: float) -> None:
        """Copy a message into the next free slot."""
        if not self._sends:
            raise RuntimeError("this end of the pipe receives")
        length = sum(map(len, parts))
        check_size(length, self._size)
        end = take_turn(self._lock, timeout)
        try:
            self._await_free(end, self._capacity - 1)
            memory = self._memory
            start = _SLOTS + self._count % self._capacity * self._stride
            _LENGTH.pack_into(memory, start, length)
            start += _SLOT_HEADER
            for part in parts:
                stop = start + len(part)
                if stop - start < BIG:
                    memory[start:stop] = part
                else:
                    np.copyto(np.frombuffer(memory[start:stop], np.uint8), np.frombuffer(part, np.uint8))
                start = stop
            self._count = (self._count + 1) % self._round
            if self._fence:
                self._fence()
            self._sent.cell.value = self._count
        finally:
            self._lock.release()
        _wake(self._sent, self._receiver_waits, self._fence)

    def recv(self, timeout: float) -> memoryview:
        """Copy the next message out of its slot."""
        return self._receive(timeout, frees=True)

    def take(self, timeout: float) -> memoryview:
        """Copy the next message; its slot stays occupied until `free`."""
        return self._receive(timeout, frees=False)

    def free(self) -> None:
        """Let the sender use the slot again."""
        with self._lock:
            if self._closed:
                raise ClosedError
            self._free()
        _wake(self._freed, self._sender_waits, self._fence)

    def fill(self) -> float:
        """Occupied slots, relative to the capacity."""
        return min((self._sent.cell.value - self._freed.cell.value) % self._round / self._capacity, 1.0)

    def drain(self, timeout: float) -> None:
        """Wait until every slot is free."""
        end = take_turn(self._lock, timeout)
        try:
            self._await_free(end, 0)
        finally:
            self._lock.release()

    @property
    def is_closed(self) -> bool:
        """Whether this end is closed."""
        return self._closed

    def close(self) -> None:
        """Wake all waiting threads on both sides, and release the memory."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._own_closed.cell.value = 1
            self._sent.wake()
            self._freed.wake()
            with self._lock:  # waiting threads have left by now; the memory is unmapped with its last view
                empty = mmap.mmap(-1, mmap.PAGESIZE)
                self._memory = memoryview(empty)
                self._sent = self._freed = self._own_closed = self._peer_closed = self._peer = Word(empty, 0)
                self._receiver_waits = self._sender_waits = self._own_closed
                for descriptor in (self._descriptor, self._process):
                    if descriptor is not None and descriptor >= 0:
                        os.close(descriptor)

    def _receive(self, timeout: float, frees: bool) -> memoryview:
        end = take_turn(self._lock, timeout)
        try:
            if self._sends:
                raise RuntimeError("this end of the pipe sends")
            if self._taken:
                raise RuntimeError("the slot of the last message is still occupied: call `free` first")
            waiting = self._await_message(end)
            if self._fence:
                self._fence()
            memory = self._memory
            start = _SLOTS + self._count % self._capacity * self._stride
            (length,) = _LENGTH.unpack_from(memory, start)
            if length > self._size or waiting > self._capacity:
                raise WireError(f"{waiting} messages in {self._capacity} slots, {length} bytes in {self._size}")
            start += _SLOT_HEADER
            if length < BIG:
                message = memoryview(bytearray(memory[start : start + length]))
            else:
                message = new_memory(length)
                np.copyto(np.frombuffer(message, np.uint8), np.frombuffer(memory[start : start + length], np.uint8))
            self._taken = True
            if frees:
                self._free()
        finally:
            self._lock.release()
        if frees:
            _wake(self._freed, self._sender_waits, self._fence)
        return message

    def _free(self) -> None:
        if not self._taken:
            raise RuntimeError("no message was taken")
        self._taken = False
        self._count = (self._count + 1) % self._round
        if self._fence:
            self._fence()
        self._freed.cell.value = self._count

    def _await_message(self, end: float) -> int:
        """Wait for a message; returns the number of waiting messages, at least 1."""
        waited = False
        while True:
            alone = self._is_alone(waited)  # checked first: messages sent before the peer died are visible by now
            if self._closed:
                raise ClosedError
            sent = self._sent.cell.value
            if sent != self._count:
                return (sent - self._count) % self._round
            if alone:
                raise ClosedError
            seconds = time_left(end, LOOK_SECONDS)
            self._receiver_waits.cell.value = 1
            self._sent.wait(sent, seconds)
            self._receiver_waits.cell.value = 0
            waited = True

    def _await_free(self, end: float, at_most: int) -> None:
        """Wait until at most `at_most` slots are occupied; ClosedError if the receiver is gone."""
        waited = False
        while True:
            if self._closed or self._peer_closed.cell.value:
                raise ClosedError
            freed = self._freed.cell.value
            if (self._count - freed) % self._round <= at_most:
                return
            if self._is_alone(waited):
                raise ClosedError
            seconds = time_left(end, LOOK_SECONDS)
            self._sender_waits.cell.value = 1
            self._freed.wait(freed, seconds)
            self._sender_waits.cell.value = 0
            waited = True

    def _is_alone(self, check_process: bool) -> bool:
        """Whether the other side is closed or, with `check_process` (slower), its process is dead."""
        if self._peer_closed.cell.value:
            return True
        if not check_process:
            return False
        if self._process is None:
            pid = self._peer.cell.value
            if not pid:
                return False  # the sender has not connected yet
            try:
                self._process = os.pidfd_open(pid)
            except ProcessLookupError:
                return True
        poll = select.poll()
        poll.register(self._process, select.POLLIN)
        return bool(poll.poll(0))


def _wake(counter: Word, waits: Word, fence: Callable[[], None] | None) -> None:
    """Wake the threads that wait for a changed counter, if there are any.

    The pipe's lock was released in between: on x86-64, others see the new counter before we read `waits`. A waiting
    thread sets `waits` before the kernel compares the counter for the last time.
    """
    if fence:
        fence()
    if waits.cell.value:
        counter.wake()

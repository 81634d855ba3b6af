"""Words in shared memory that processes can wait on (Linux futexes)."""

import ctypes
import mmap
import platform
import threading
from collections.abc import Callable

_SYSCALLS = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE = 0, 1
_ALL = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_long, _int, _pointer = ctypes.c_long, ctypes.c_int, ctypes.c_void_p
_libc = ctypes.CDLL(None)
_wait = ctypes.CFUNCTYPE(_long, _long, _pointer, _int, ctypes.c_uint32, _pointer)(("syscall", _libc))
# CFUNCTYPE releases the GIL; waking is faster than releasing it, hence PYFUNCTYPE.
_wake = ctypes.PYFUNCTYPE(_long, _long, _pointer, _int, _int)(("syscall", _libc))
_syscall = _SYSCALLS.get(platform.machine())


class Word:
    """A 32-bit integer in shared memory. One process writes it, any process may wait until it changes."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        if _syscall is None:
            raise OSError(f"shared memory pipes run on {' and '.join(_SYSCALLS)}, not on {platform.machine()}")
        self.cell = ctypes.c_uint32.from_buffer(memory, offset)
        """Its `value` is the integer."""
        self._address = ctypes.addressof(self.cell)

    def wait(self, value: int, seconds: float) -> None:
        """Return when the integer is not `value`, after a wake-up or the timeout, or spuriously."""
        time = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        _wait(_syscall, self._address, _WAIT, value, ctypes.addressof(time))

    def wake(self) -> None:
        """Wake all waiting threads."""
        _wake(_syscall, self._address, _WAKE, _ALL)


def fence() -> Callable[[], None] | None:
    """A memory fence to call between writing a message and the counter that announces it; None where none is needed.

    Releasing and re-acquiring a lock together act as a full barrier: no memory access is reordered across barrier.
    """
    if platform.machine() == "x86_64":
        return None
    lock = threading.Lock()
    lock.acquire()

    def barrier() -> None:
        lock.release()
        lock.acquire()

    return barrier

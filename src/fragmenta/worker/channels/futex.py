"""Words in shared memory that processes can wait for (Linux)."""

import ctypes
import mmap
import platform
import threading
from collections.abc import Callable

_NUMBERS = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE = 0, 1
_EVERYBODY = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_long, _int, _pointer = ctypes.c_long, ctypes.c_int, ctypes.c_void_p
_libc = ctypes.CDLL(None)
_wait = ctypes.CFUNCTYPE(_long, _long, _pointer, _int, ctypes.c_uint32, _pointer)(("syscall", _libc))
# The first kind of call lets other threads run; waking takes less time than that.
_wake = ctypes.PYFUNCTYPE(_long, _long, _pointer, _int, _int)(("syscall", _libc))
_number = _NUMBERS.get(platform.machine())


class Word:
    """A number of 32 bits in shared memory. One process writes it, any may wait until it is another."""

    def __init__(self, memory: mmap.mmap, place: int) -> None:
        if _number is None:
            raise OSError(f"shared memory pipes run on {' and '.join(_NUMBERS)}, not on {platform.machine()}")
        self.cell = ctypes.c_uint32.from_buffer(memory, place)
        """Its `value` is the number."""
        self._address = ctypes.addressof(self.cell)

    def wait(self, value: int, seconds: float) -> None:
        """Return once the number is not `value`, or was changed, or the time is over, or for no reason at all."""
        time = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        _wait(_number, self._address, _WAIT, value, ctypes.addressof(time))

    def wake(self) -> None:
        """Wake everyone who waits here."""
        _wake(_number, self._address, _WAKE, _EVERYBODY)


def fence() -> Callable[[], None] | None:
    """What must be called between contents and the counter that announces them; None where memory keeps its order.

    A lock's release and its next acquisition let no access of memory past them, together in neither direction.
    """
    if platform.machine() == "x86_64":
        return None
    lock = threading.Lock()
    lock.acquire()

    def both() -> None:
        lock.release()
        lock.acquire()

    return both

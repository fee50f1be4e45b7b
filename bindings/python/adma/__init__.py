"""Copies that go on while the program computes, and messages between processes in one copy.

    import adma

    copy = adma.icopy(src, dst)         # bytes, bytearray, memoryview, numpy arrays, ...
    compute()
    copy.wait()                         # or: await copy

    with adma.connect("/tmp/socket") as c:  # the other side: adma.listen(...).accept()
        c.write(array)
        count = c.read_into(buffer)

In asyncio see adma.aio. Buffers are held while something is under way: an object that is written
to, or read from, is not freed and cannot be resized until that has ended, or was withdrawn. A
request that is dropped is withdrawn first. Errors are OSError and its kinds: BrokenPipeError where
the other side has closed, ConnectionResetError where it has died, TimeoutError.

The library is the one that the process has (adma program, LD_PRELOAD), or else that of this package.
Its promises, and what it may be asked to do by ADMA_ variables, are in adma.h and adma(7).
"""
from __future__ import annotations

import atexit
import ctypes
import errno
import math
import os
import select
import threading
import time
import weakref
from typing import (
    TYPE_CHECKING, Any, Callable, Dict, Generator, List, NamedTuple, Optional, Protocol, Set, Tuple, Type, TypeVar,
    Union,
)

from . import _library
from ._library import Pin, error, lib, record

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

    from typing_extensions import Buffer

__all__ = [
    "Connection", "Listener", "Peer", "Request", "Stats", "__version__", "alloc", "attach", "connect",
    "copy", "icopy", "listen", "off", "stats",
]

_version = lib.adma_version()
__version__ = f"{_version >> 16}.{_version >> 8 & 255}.{_version & 255}"

# Waiting is not ended by signals, so it is done in steps, and Ctrl-C is seen between two of them.
_STEP_MS = 50
# Up to here messages are copied when they are written (adma.h).
_SMALL = 32 << 10
_UNFINISHED = (-errno.EINPROGRESS, -errno.ETIMEDOUT)

# Memory of copies under way. What is here is not freed, whatever becomes of the rest.
_held: Set[Pin] = set()
# Requests under way, by address. (A WeakSet would run Python where a request is freed.)
_requests: Dict[int, weakref.ref[Request]] = {}


class Stats(NamedTuple):
    """Figures of this process so far: large copies by the engine and by libc, and messages."""

    engine_calls: int
    engine_bytes: int
    libc_calls: int
    libc_bytes: int
    messages_sent: int
    bytes_sent: int
    messages_received: int
    bytes_received: int


class Peer(NamedTuple):
    """The other process, as the system describes it; proven: messages need one copy only."""

    pid: int
    uid: int
    gid: int
    proven: bool


def stats() -> Stats:
    """Return the figures of this process; OSError (ENODATA) where ADMA_STATS counts nothing."""
    figures = _library.Stats(size=ctypes.sizeof(_library.Stats))
    result = lib.adma_stats(ctypes.byref(figures))
    if result == -errno.ENODATA:
        raise OSError(errno.ENODATA, "nothing is counted: set ADMA_STATS or ADMA_LIVE")
    if result < 0:
        raise error(result)
    return Stats(*(getattr(figures, name) for name in Stats._fields))


class off:
    """Leave large copies to libc in a with block, those of all threads; blocks nest."""

    def __enter__(self) -> None:
        lib.adma_off()

    def __exit__(self, *_: object) -> None:
        lib.adma_on()


def alloc(size: int) -> memoryview:
    """Return zeroed memory for messages, which both processes can map: they are fastest there.

    It is freed when the last view of it is gone. See adma_alloc(3) for what the other process, and
    children of fork, can see.
    """
    if size < 0:
        raise ValueError("negative size")
    address = lib.adma_alloc(max(size, 1))
    if not address:
        raise MemoryError(f"adma_alloc of {size} bytes")
    block = (ctypes.c_ubyte * size).from_address(address)
    # Not at exit: views may still be in use there.
    weakref.finalize(block, lib.adma_free, address).atexit = False
    return memoryview(block).cast("B")


def _pair(src: Buffer, dst: Buffer) -> List[Pin]:
    pins = [Pin(src, False), Pin(dst, True)]
    if pins[0].len != pins[1].len:
        raise ValueError(f"source has {pins[0].len} bytes, destination {pins[1].len}")
    return pins


def copy(src: Buffer, dst: Buffer) -> None:
    """Copy all bytes of src into dst, which has as many, and return when it is done."""
    pins = _pair(src, dst)
    lib.adma_copy(pins[0].address, pins[1].address, pins[0].len)


def icopy(src: Buffer, dst: Buffer) -> Request:
    """Start to copy all bytes of src into dst, which has as many."""
    pins = _pair(src, dst)
    arguments = (pins[0].address, pins[1].address, pins[0].len)
    return Request(lib.adma_icopy, arguments, pins, None)


class Request:
    """A copy or message under way, until wait() or await has told its end."""

    def __init__(
        self,
        function: Callable[..., int],
        arguments: Any,
        pins: List[Pin],
        connection: Optional[_Endpoint],
    ) -> None:
        self._cookies: List[int] = []
        self._results: List[int] = []
        self._over = False
        self._lock = threading.RLock()  # a cookie is for one thread at a time
        self._connection = connection
        self._pins = pins
        self._length = pins[0].len
        self._held = _held if connection is None else connection._held
        self._held.update(pins)
        _requests[id(self)] = weakref.ref(self)
        record(self._cookies, function, *arguments)
        if self._cookies[0] < 0:
            self._end()
            raise error(self._cookies[0])

    def _end(self) -> None:
        self._over = True
        _requests.pop(id(self), None)
        self._held.difference_update(self._pins)
        self._pins = []

    def _look(self, function: Callable[..., int], *arguments: Any) -> bool:
        """Ask for the result; False: it is still under way."""
        with self._lock:
            if self._over:
                return True
            # An exception of a signal handler may have come after the call returned.
            if self._results and self._results[0] in _UNFINISHED:
                self._results.clear()
            if not self._results:
                record(self._results, function, self._cookies[0], *arguments)
            if self._results[0] in _UNFINISHED:
                self._results.clear()
                return False
            if self._connection is not None and self._results[0] == -errno.EINVAL:
                # Another thread is just closing the connection: its end frees the memory.
                self._results[0] = -errno.EBADF
                self._pins = []
                self._end()
            else:
                self._end()
            return True

    def _result(self) -> int:
        result = self._results[0]
        if result < 0:
            raise error(result)
        return result

    def done(self) -> bool:
        """Say whether it is over, without waiting. A message may go on by a piece meanwhile."""
        return self._look(lib.adma_check)

    def copied(self) -> int:
        """Return how many bytes from the start of the destination are in place."""
        with self._lock:
            if not self._over:
                return max(0, lib.adma_copied(self._cookies[0]))
            result = self._result()
            return self._length if self._connection is None else result

    def wait(self, timeout: Optional[float] = None) -> int:
        """Wait for the end, at most timeout seconds, and return the bytes of a message, or 0.

        After TimeoutError and KeyboardInterrupt it is still under way.
        """
        if timeout is None and self._connection is None:
            self._look(lib.adma_wait)  # which copies as well
        limit = _Limit(timeout)
        while not self._look(lib.adma_wait_for, limit.step()):
            limit.check()
        return self._result()

    def cancel(self) -> bool:
        """Withdraw a message, or wait for a copy; its memory is free then.

        Returns True, or False where it was over: then wait() tells the result.
        """
        self._look(lib.adma_cancel)
        return bool(self._results) and self._results[0] == -errno.ECANCELED

    def __await__(self) -> Generator[Any, None, int]:
        from . import aio

        return aio.finish(self).__await__()

    def __del__(self) -> None:
        # The memory is not ours any more when this has returned.
        if not getattr(self, "_over", True) and self._cookies:
            self._look(lib.adma_cancel)


@atexit.register
def _end_all() -> None:
    """Wait for copies, and leave memory of messages to the end of the process.

    The interpreter frees memory from here on, in any order. Messages may be under way for long.
    """
    for reference in list(_requests.values()):
        request = reference()
        if request is None:
            continue
        if request._connection is None and request._cookies:
            request.cancel()
        for pin in request._pins:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(pin))
        request._over = True


class _Limit:
    """A time limit in steps."""

    def __init__(self, seconds: Optional[float]) -> None:
        self.end = math.inf if seconds is None else time.monotonic() + seconds

    def step(self) -> int:
        """Return milliseconds of the next step."""
        if self.end == math.inf:
            return _STEP_MS
        left = max(0.0, self.end - time.monotonic())
        return min(_STEP_MS, math.ceil(min(left, 1.0) * 1000))

    def left(self) -> Optional[float]:
        """Return the seconds that are left; None: there is no limit."""
        return None if self.end == math.inf else self.end - time.monotonic()

    def check(self) -> None:
        if time.monotonic() >= self.end:
            raise error(-errno.ETIMEDOUT)


_NO_LIMIT = _Limit(None)

_Self = TypeVar("_Self", bound="_Endpoint")


class _Endpoint:
    """A number of the library's, and its end."""

    def __init__(self, function: Callable[..., int], *arguments: Any) -> None:
        self._numbers: List[int] = []
        self._held: Set[Pin] = set()
        self._closing = threading.RLock()  # also for __del__ that comes in the middle of it
        self._waiters: List[asyncio.Future[None]] = []  # of adma.aio
        record(self._numbers, function, *arguments)
        if self._numbers[0] < 0:
            raise error(self._numbers.pop())

    @property
    def number(self) -> int:
        """The number that functions of adma.h take."""
        if not self._numbers:
            raise error(-errno.EBADF)
        return self._numbers[0]

    def fileno(self) -> int:
        """Return a descriptor that becomes readable with the first change after arm()."""
        return self._told(lib.adma_event_fd(self.number))

    def arm(self) -> bool:
        """Say whether there is something to look at first: see adma_arm(3)."""
        return self._told(lib.adma_arm(self.number)) == 1

    def _told(self, result: int) -> int:
        if result < 0:
            raise error(result)
        return result

    def _pause(self, limit: _Limit, ready: bool) -> None:
        """Sleep until something may have changed since arm(), or a signal comes."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        step = limit.step()
        poll.poll(min(step, 1) if ready else step)
        limit.check()

    def close(self) -> None:
        """Close it; what is under way ends. TimeoutError: the other process has stopped in the
        middle of a message; call it again."""
        if self._waiters:
            from . import aio

            aio.wake(self)
        with self._closing:  # the library may give a listener's number to the next one
            if not self._numbers:
                return
            result = lib.adma_close(self._numbers[0])
            if result < 0 and result not in (-errno.EBADF, -errno.EPERM):
                raise error(result)
            self._numbers.clear()
            self._held.clear()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except OSError:
            _held.update(self._held)  # for good


class _Messages(_Endpoint):
    """What connections have in common, with and without an event loop."""

    @property
    def peer(self) -> Peer:
        """The other process."""
        peer = _library.Peer()
        self._told(lib.adma_peer(self.number, ctypes.byref(peer)))
        return Peer(peer.pid, peer.uid, peer.gid, peer.proven == 1)

    @property
    def info(self) -> str:
        """One line about how large messages are copied."""
        text = ctypes.create_string_buffer(256)
        self._told(lib.adma_connection_info(self.number, text, len(text)))
        return text.value.decode()

    def next(self) -> Optional[int]:
        """Return the length of the next message, or None while there is none."""
        result = lib.adma_next(self.number)
        return None if result == -errno.EAGAIN else self._told(result)

    def iread_into(self, buffer: Buffer) -> Request:
        """Start to read one message."""
        pin = Pin(buffer, True)
        return Request(lib.adma_iread, (self.number, pin.address, pin.len), [pin], self)

    def iwrite(self, data: Buffer) -> Request:
        """Start to write one message; it is over when the other side has read it."""
        pin = Pin(data, False)
        return Request(lib.adma_iwrite, (self.number, pin.address, pin.len), [pin], self)

    def _try_write(self, data: Buffer, milliseconds: int) -> Union[int, Request]:
        """Write a small message, or start a large one; BlockingIOError: there is no room yet."""
        pin = Pin(data, False)
        if pin.len > _SMALL:
            return self.iwrite(data)
        result = lib.adma_write_within(self.number, pin.address, pin.len, milliseconds)
        return self._told(-errno.EAGAIN if result == -errno.ETIMEDOUT else result)


class Connection(_Messages):
    """A connection: each write of one side meets one read of the other."""

    def __init__(self, function: Callable[..., int], *arguments: Any) -> None:
        self._reading, self._writing = threading.Lock(), threading.Lock()
        super().__init__(function, *arguments)

    def read_into(self, buffer: Buffer, timeout: Optional[float] = None) -> int:
        """Read one message and return its length; OSError (EMSGSIZE) if it does not fit.

        After any exception nothing of the buffer is written any more.
        """
        return self._transfer(lib.adma_read_within, Pin(buffer, True), self._reading, timeout)

    def read(self, timeout: Optional[float] = None) -> bytearray:
        """Read one message of any length."""
        limit = _Limit(timeout)
        while True:
            length = self.next()
            ready = length is None and self.arm()
            if length is None:
                length = self.next()
            if length is not None:
                data = bytearray(length)
                count = self.read_into(data, limit.left())
                del data[count:]
                return data
            self._pause(limit, ready)

    def write(self, data: Buffer, timeout: Optional[float] = None) -> int:
        """Write one message; above 32 KiB wait until the other side has read it."""
        return self._transfer(lib.adma_write_within, Pin(data, False), self._writing, timeout)

    def _transfer(
        self, function: Callable[..., int], pin: Pin, turn: threading.Lock, timeout: Optional[float]
    ) -> int:
        """Transfer one message, by one call unless that takes longer than a step.

        By one thread at a time: a call can give up only while no other has begun after it.
        """
        limit = _Limit(timeout) if timeout is not None else _NO_LIMIT
        if not turn.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)):
            raise error(-errno.ETIMEDOUT)
        try:
            while True:
                result = function(self.number, pin.address, pin.len, limit.step())
                if result >= 0:
                    return result
                if result == -errno.EAGAIN:
                    time.sleep(0.001)  # ends that other threads have not asked for take all room
                elif result != -errno.ETIMEDOUT:
                    raise error(result)
                limit.check()
        finally:
            turn.release()


class Listener(_Endpoint):
    """A place where clients connect."""

    def accept(self, timeout: Optional[float] = None) -> Connection:
        """Wait for a client."""
        limit = _Limit(timeout)
        # A new Connection for every step would have the interpreter call its __del__, which
        # swallows a KeyboardInterrupt that comes then.
        found: List[int] = []
        try:
            while True:
                record(found, lib.adma_accept_for, self.number, limit.step())
                if found[0] not in (-errno.ETIMEDOUT, -errno.EINTR):
                    return Connection(found.pop, 0)
                found.clear()
                limit.check()
        finally:
            if found and found[0] >= 0:
                lib.adma_close(found[0])


def listen(path: Union[str, bytes, os.PathLike[str]]) -> Listener:
    """Listen at a path, or at the abstract name "@name", for processes of this user."""
    return Listener(lib.adma_listen, os.fsencode(path))


def connect(path: Union[str, bytes, os.PathLike[str]], timeout: Optional[float] = None) -> Connection:
    """Connect to a listener; without a limit it is that of ADMA_IPC_TIMEOUT, 10 seconds."""
    # In a thread, for the call is not ended by signals. One that is left alone closes what it gets.
    call = _connecting(path, timeout)
    found: List[int] = []
    left: List[bool] = []

    def close() -> None:
        left.append(True)
        try:
            lib.adma_close(found.pop())
        except IndexError:
            pass  # not there yet, or closed by the other thread

    def work() -> None:
        record(found, *call)
        if left:
            close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_STEP_MS / 1000)
        return Connection(found.pop, 0)
    finally:
        close()


def _connecting(
    path: Union[str, bytes, os.PathLike[str]], timeout: Optional[float]
) -> Tuple[Callable[..., int], bytes, int]:
    milliseconds = -1 if timeout is None else math.ceil(max(0.0, timeout) * 1000)
    return lib.adma_connect_for, os.fsencode(path), milliseconds


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


def attach(socket: Union[int, _HasFileno]) -> Connection:
    """Make a connection over a connected unix socket; the other side calls it as well."""
    return Connection(lib.adma_attach, socket if isinstance(socket, int) else socket.fileno())

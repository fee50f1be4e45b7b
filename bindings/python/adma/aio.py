"""Messages in asyncio, without threads: adma.aio.listen, connect; read_into, read, write, accept.

    async with await adma.aio.connect("/tmp/socket") as c:
        await c.write(array)
        count = await c.read_into(buffer)

Requests of adma itself can be awaited, too: await adma.icopy(a, b), await c.iread_into(buffer). A
connection belongs to one event loop. A task that is cancelled withdraws its message.
"""
from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Callable, Optional, TypeVar, Union

from . import Request, _connecting, _Endpoint, _Messages
from ._library import lib

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Connection", "Listener", "connect", "listen"]

_Found = TypeVar("_Found")

# The library may say "look first" for something that no task waits for. After this many looks a task
# looks once a millisecond, and at every change.
_LOOKS = 50


def wake(endpoint: _Endpoint) -> None:
    """Let all tasks that wait for a change look."""
    waiters, endpoint._waiters = endpoint._waiters, []
    if waiters:
        waiters[0].get_loop().remove_reader(endpoint.fileno())
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


async def _change(endpoint: _Endpoint, told: bool) -> None:
    """Wait for the first change after arm(); told: a millisecond at most."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()
    if not endpoint._waiters:
        loop.add_reader(endpoint.fileno(), wake, endpoint)
    endpoint._waiters.append(waiter)
    timer = loop.call_later(0.001, wake, endpoint) if told else None
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        if waiter in endpoint._waiters:  # cancelled
            endpoint._waiters.remove(waiter)
            if not endpoint._waiters:
                loop.remove_reader(endpoint.fileno())


async def _until(endpoint: _Endpoint, look: Callable[[], Optional[_Found]]) -> _Found:
    """Look until there is something.

    arm() takes the news of all tasks from the descriptor. So all look when one has found what it
    waited for, and a millisecond after arm() has told one that found nothing.
    """
    looks, told = 0, False
    try:
        while True:
            found = look()
            if found is not None:
                return found
            try:
                ready = endpoint.arm()
            except OSError:
                ready = True  # what is wrong, looking will tell
            # No look after arm() has said that there is nothing: looking may take a step that makes
            # something, of which the descriptor then does not tell.
            looks, told = looks + 1, told or ready
            if ready and looks < _LOOKS:
                await asyncio.sleep(0)
            else:
                await _change(endpoint, told)
                told = False
    finally:
        wake(endpoint)


async def finish(request: Request) -> int:
    """Wait for the end of a request; cancelled, it is still under way."""
    connection = request._connection
    if connection is None:
        if not request.done():
            # In a thread, because waiting for a copy does a part of it.
            await asyncio.get_running_loop().run_in_executor(None, request.wait)
        return request.wait()
    await _until(connection, lambda: request.done() or None)
    return request.wait()


class Connection(_Messages):
    """A connection, as adma.Connection."""

    async def read_into(self, buffer: Buffer) -> int:
        """Read one message and return its length; OSError (EMSGSIZE) if it does not fit."""
        return await self._finished(await self._begun(lambda: self.iread_into(buffer)))

    async def read(self) -> bytearray:
        """Read one message of any length."""
        data = bytearray(await _until(self, self.next))
        count = await self.read_into(data)
        del data[count:]
        return data

    async def write(self, data: Buffer) -> int:
        """Write one message; above 32 KiB wait until the other side has read it."""
        written = await self._begun(lambda: self._try_write(data, 0))
        return written if isinstance(written, int) else await self._finished(written)

    async def _begun(self, begin: Callable[[], _Found]) -> _Found:
        """Begin as soon as there is room: ends that other tasks have not asked for take some."""
        while True:
            try:
                return begin()
            except BlockingIOError:
                await asyncio.sleep(0.001)

    async def _finished(self, request: Request) -> int:
        try:
            return await request
        finally:
            request.cancel()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Listener(_Endpoint):
    """A place where clients connect."""

    async def accept(self) -> Connection:
        """Wait for a client."""
        return await _until(self, self._try_accept)

    def _try_accept(self) -> Optional[Connection]:
        try:
            return Connection(lib.adma_accept_for, self.number, 0)
        except (TimeoutError, InterruptedError):
            return None


def listen(path: Union[str, bytes, os.PathLike[str]]) -> Listener:
    """Listen at a path, or at the abstract name "@name", for processes of this user."""
    return Listener(lib.adma_listen, os.fsencode(path))


async def connect(
    path: Union[str, bytes, os.PathLike[str]], timeout: Optional[float] = None
) -> Connection:
    """Connect to a listener; without a limit it is that of ADMA_IPC_TIMEOUT, 10 seconds."""
    arguments = _connecting(path, timeout)
    # In a thread: the other side may have to greet from this very loop.
    return await asyncio.get_running_loop().run_in_executor(None, Connection, *arguments)

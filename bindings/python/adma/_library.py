"""The one libadma of this process, its functions, and what ctypes needs to call them safely."""
from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_ssize_t, c_uint, c_void_p
from typing import TYPE_CHECKING, Any, Callable, List

if TYPE_CHECKING:
    from typing_extensions import Buffer

SONAME = "libadma.so.0"


class Stats(ctypes.Structure):
    """struct adma_stats"""

    _fields_ = [("size", c_size_t)] + [
        (f"{what}_{unit}", ctypes.c_uint64)
        for what, unit in (
            ("engine", "calls"), ("engine", "bytes"), ("libc", "calls"), ("libc", "bytes"),
            ("messages", "sent"), ("bytes", "sent"), ("messages", "received"),
            ("bytes", "received"),
        )
    ]


class Peer(ctypes.Structure):
    """struct adma_peer"""

    _fields_ = [("pid", c_int), ("uid", c_uint), ("gid", c_uint), ("proven", c_int)]


# result, arguments
PROTOTYPES = {
    "adma_version": (c_uint, []),
    "adma_strerror": (c_char_p, [c_int]),
    "adma_stats": (c_int, [POINTER(Stats)]),
    "adma_off": (c_int, []),
    "adma_on": (c_int, []),
    "adma_alloc": (c_void_p, [c_size_t]),
    "adma_free": (c_int, [c_void_p]),
    "adma_copy": (c_int, [c_void_p, c_void_p, c_size_t]),
    "adma_icopy": (c_int64, [c_void_p, c_void_p, c_size_t]),
    "adma_check": (c_ssize_t, [c_int64]),
    "adma_wait": (c_ssize_t, [c_int64]),
    "adma_wait_for": (c_ssize_t, [c_int64, c_int]),
    "adma_cancel": (c_ssize_t, [c_int64]),
    "adma_copied": (c_ssize_t, [c_int64]),
    "adma_listen": (c_int, [c_char_p]),
    "adma_accept_for": (c_int, [c_int, c_int]),
    "adma_connect_for": (c_int, [c_char_p, c_int]),
    "adma_attach": (c_int, [c_int]),
    "adma_close": (c_int, [c_int]),
    "adma_peer": (c_int, [c_int, POINTER(Peer)]),
    "adma_connection_info": (c_int, [c_int, c_char_p, c_size_t]),
    "adma_event_fd": (c_int, [c_int]),
    "adma_arm": (c_int, [c_int]),
    "adma_next": (c_ssize_t, [c_int]),
    "adma_read_within": (c_ssize_t, [c_int, c_void_p, c_size_t, c_int]),
    "adma_write_within": (c_ssize_t, [c_int, c_void_p, c_size_t, c_int]),
    "adma_iread": (c_int64, [c_int, c_void_p, c_size_t]),
    "adma_iwrite": (c_int64, [c_int, c_void_p, c_size_t]),
}


def _load() -> ctypes.CDLL:
    """Return the library that the process has, however it came by it, or load ours.

    The loader knows libraries by their soname, whatever file they are from.
    """
    try:
        return ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        pass
    # The wheel puts it into lib of the prefix, which is above site-packages; or beside this
    # package after pip install --target.
    folder = os.path.dirname(os.path.abspath(__file__))
    for _ in range(4):
        folder = os.path.dirname(folder)
        path = os.path.join(folder, "lib", SONAME)
        if os.path.exists(path):
            return ctypes.CDLL(path)
    try:
        return ctypes.CDLL(SONAME)
    except OSError as error:
        raise ImportError(f"adma: {error}") from None


def _declare() -> ctypes.CDLL:
    library = _load()
    for name, (result, arguments) in PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"adma: the libadma of this process is older and has no {name}") from None
        function.restype, function.argtypes = result, arguments
    return library


lib = _declare()


def error(result: int) -> OSError:
    """Return the exception for a negative result: ConnectionResetError, BrokenPipeError..."""
    return OSError(-result, lib.adma_strerror(result).decode())


def record(results: List[int], function: Callable[..., int], *arguments: Any) -> None:
    """Append what the function returns.

    KeyboardInterrupt comes between two instructions of Python, so it could come between the return
    of a call and the assignment of its result, and a cookie be lost. Here there is none between.
    """
    results.extend(map(function, *((argument,) for argument in arguments)))


class _PyBuffer(ctypes.Structure):
    """Py_buffer of CPython: ctypes' own from_buffer() refuses memory that is only to be read."""

    _fields_ = [
        ("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t),
        ("readonly", c_int), ("ndim", c_int), ("format", c_char_p), ("shape", c_void_p),
        ("strides", c_void_p), ("suboffsets", c_void_p), ("internal", c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes, _get_buffer.restype = [ctypes.py_object, POINTER(_PyBuffer), c_int], c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = [POINTER(_PyBuffer)], None


class Pin:
    """Memory of an object, which neither goes nor moves while this is there.

    It has no __del__: that swallows a KeyboardInterrupt which comes while it runs.
    """

    def __init__(self, owner: Buffer, writable: bool) -> None:
        self._view = memoryview(owner)
        asked = _PyBuffer()
        # 1 is PyBUF_WRITABLE; without more, memory that is not contiguous is a BufferError.
        _get_buffer(owner, byref(asked), 1 if writable else 0)
        self.address, self.len = asked.buf, asked.len
        _release_buffer(byref(asked))

"""pyzmq: messages of 16 MiB from one process to another."""

import multiprocessing
import os
import zlib

import zmq
from work import CHECK, MIB, check, clock, main, short_folder

# A forked child of Python leaves by _exit, with no time to write statistics.
SPAWN = multiprocessing.get_context("spawn")


def digest(message):
    """What the other process tells of its last message, where results are compared."""
    return zlib.crc32(message) if CHECK else None


def pull(address, count, answer):
    socket = zmq.Context().socket(zmq.PULL)
    socket.connect(address)
    answer.send("ready")
    for _ in range(count):
        message = socket.recv()
    answer.send(digest(message))
    socket.close()


def messages(count):
    message = os.urandom(MIB) * 16
    ours, theirs = SPAWN.Pipe()
    with short_folder() as folder:
        address = f"ipc://{folder}/socket"
        other = SPAWN.Process(target=pull, args=(address, count, theirs))
        other.start()
        socket = zmq.Context().socket(zmq.PUSH)
        socket.set_hwm(4)
        socket.bind(address)
        ours.recv()
        with clock():
            for _ in range(count):
                socket.send(message)
            theirs_digest = ours.recv()
        other.join()
        socket.close()
    check(theirs_digest == digest(message))


if __name__ == "__main__":
    main({"messages": messages})

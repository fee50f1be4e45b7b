"""pyzmq: messages of 16 MiB from one process to another."""

import hashlib
import multiprocessing
import os

import zmq
from work import MIB, check, clock, main, short_folder

# A forked child of Python leaves by _exit, with no time to write statistics.
SPAWN = multiprocessing.get_context("spawn")


def pull(address, count, answer):
    socket = zmq.Context().socket(zmq.PULL)
    socket.connect(address)
    answer.send("ready")
    for _ in range(count):
        message = socket.recv()
    answer.send(hashlib.blake2b(message).digest())
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
            digest = ours.recv()
        other.join()
        socket.close()
    check(digest == hashlib.blake2b(message).digest())


if __name__ == "__main__":
    main({"messages": messages})

"""pyzmq: messages of 16 MiB from one process to another."""

import os

import zmq
from work import MIB, beside, check, clock, digest, main, short_folder


def pull(answer, address, count):
    socket = zmq.Context().socket(zmq.PULL)
    socket.connect(address)
    answer.send("ready")
    for _ in range(count):
        message = socket.recv()
    answer.send(digest(message))
    socket.close()


def messages(count):
    message = os.urandom(MIB) * 16
    with short_folder() as folder:
        address = f"ipc://{folder}/socket"
        socket = zmq.Context().socket(zmq.PUSH)
        socket.set_hwm(4)
        socket.bind(address)
        ours, other = beside(pull, address, count)
        with clock():
            for _ in range(count):
                socket.send(message)
            theirs_digest = ours.recv()
        other.join()
        socket.close()
    check(theirs_digest == digest(message))


if __name__ == "__main__":
    main({"messages": messages})

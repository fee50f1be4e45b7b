"""Messages between two Python processes: adma beside what Python programs use otherwise.

    bench/run ipc python [seconds for each size]

Half a round trip, in microseconds: the median of rounds in which all means take turns, so that a busy
machine slows all of them. Each side has its own buffer; what arrives lies in the receiver's memory.
pyzmq is measured where a Python has it; root's run installs the package python3-zmq where none has.
"""
import argparse
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
import traceback
from multiprocessing import shared_memory

import adma

try:
    import zmq
except ImportError:
    zmq = None

SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)


class Adma:
    """One buffer of ordinary memory on each side."""

    def __init__(self, folder):
        self.path = f"{folder}/adma"
        self.listener = adma.listen(self.path)

    def open(self, first):
        self.end = self.listener.accept(60) if first else adma.connect(self.path, 60)

    def send(self, buffer):
        self.end.write(buffer)

    def receive(self, buffer):
        self.end.read_into(buffer)


class Socket:
    def __init__(self, folder):
        self.ends = socket.socketpair()

    def open(self, first):
        self.end = self.ends[0 if first else 1]

    def send(self, buffer):
        self.end.sendall(buffer)

    def receive(self, buffer):
        view = memoryview(buffer)
        while view:
            view = view[self.end.recv_into(view):]


class Pipe:
    """multiprocessing.Pipe, by its calls for bytes."""

    def __init__(self, folder):
        self.ends = multiprocessing.Pipe()

    def open(self, first):
        self.end = self.ends[0 if first else 1]

    def send(self, buffer):
        self.end.send_bytes(buffer)

    def receive(self, buffer):
        self.end.recv_bytes_into(buffer)


class SharedMemory:
    """Copied into shared memory, announced by a byte in a pipe, copied out of it."""

    def __init__(self, folder):
        self.memory = shared_memory.SharedMemory(create=True, size=2 * SIZES[-1])
        self.memory.unlink()
        self.pipes = os.pipe(), os.pipe()

    def open(self, first):
        here, there = (0, 1) if first else (1, 0)
        self.out, self.into = self.pipes[here][1], self.pipes[there][0]
        self.halves = [self.memory.buf[side * SIZES[-1]:] for side in (here, there)]

    def send(self, buffer):
        self.halves[0][:len(buffer)] = buffer
        os.write(self.out, b"x")

    def receive(self, buffer):
        os.read(self.into, 1)
        memoryview(buffer)[:] = self.halves[1][:len(buffer)]


class Zmq:
    def __init__(self, folder):
        self.path = f"ipc://{folder}/zmq"

    def open(self, first):
        self.end = zmq.Context().socket(zmq.PAIR)
        (self.end.bind if first else self.end.connect)(self.path)

    def send(self, buffer):
        self.end.send(buffer, copy=len(buffer) < 65536)

    def receive(self, buffer):
        memoryview(buffer)[:] = self.end.recv(copy=False).buffer


def echo(means):
    for each in means:
        each.open(False)
    for size in SIZES:
        buffer = bytearray(size)
        while True:
            for each in means:
                each.receive(buffer)
                each.send(buffer)
            if buffer[0]:
                break


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("seconds", nargs="?", type=float, default=3.0, help="for each size")
    seconds = options.parse_args().seconds
    kinds = [Adma, Socket, Pipe, SharedMemory] + ([Zmq] if zmq else [])
    with tempfile.TemporaryDirectory() as folder:
        means = [kind(folder) for kind in kinds]
        over, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(tell)
                echo(means)
                os.read(over, 1)  # pyzmq sends large messages after send() has returned
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        for each in means:
            each.open(True)
        print(f"{'size':>10}" + "".join(f"{kind.__name__:>14}" for kind in kinds) + "   us, half a round trip")
        for size in SIZES:
            buffer, times = bytearray(size), [[] for _ in means]
            end = time.perf_counter() + seconds
            while not buffer[0]:
                buffer[0] = time.perf_counter() > end  # tells the other side that this is the last
                for each, taken in zip(means, times):
                    begun = time.perf_counter()
                    each.send(buffer)
                    each.receive(buffer)
                    taken.append(time.perf_counter() - begun)
            medians = [statistics.median(taken) / 2 * 1e6 for taken in times]
            print(f"{size:>10}" + "".join(f"{median:>14.1f}" for median in medians))
        os.close(tell)
        os.waitpid(child, 0)
        return means


kept = main()
sys.stdout.flush()
os._exit(0)  # SharedMemory would complain of its views

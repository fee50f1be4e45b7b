"""Messages between two Python processes: adma beside what Python programs use otherwise.

    bench/run ipc-python [--seconds S] [--sizes 1K,1M]

Half a round trip, in microseconds: the median of rounds in which all means take turns, so that a busy
machine slows all of them. Each side has its own buffer; what arrives lies in the receiver's memory.
Before a size is timed, random bytes go there and back by every means and are compared.
pyzmq and iceoryx2 are measured where a Python has them (bench/programs/install). iceoryx2's messages are
once copied into the receiver's memory like all others, and once read where they lie (InPlace), until the
next one has come. "best" is the time of the fastest other way that copies, over ours.
"""
import argparse
import ctypes
import multiprocessing
import os
import signal
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
try:
    import iceoryx2
except ImportError:
    iceoryx2 = None

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("seconds", type=float, help="for each size")
options.add_argument("sizes", nargs="+", metavar="NAME=BYTES", help="of a message")
options = options.parse_args()
NAMES = {int(size): name for name, size in (each.split("=") for each in options.sizes)}
SIZES = sorted(NAMES)


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
        return buffer


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
        return buffer


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
        return buffer


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
        return buffer


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
        return buffer


class Iceoryx2:
    """Copied into a loaned sample, published with an event that wakes the reader, copied out of the sample."""

    def __init__(self, folder):
        self.name = folder.strip("/").replace("/", "-") + type(self).__name__

    def open(self, first):
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        self.node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
        out, into = map(self.services, ("there", "back") if first else ("back", "there"))
        self.kept = out, into
        self.subscriber, self.listener = into[0].subscriber_builder().create(), into[1].listener_builder().create()
        self.publisher = out[0].publisher_builder().initial_max_slice_len(SIZES[-1]).create()
        self.notifier = out[1].notifier_builder().create()
        # What is published before the other side subscribes is lost.
        while not (out[0].dynamic_config.number_of_subscribers and out[1].dynamic_config.number_of_listeners):
            time.sleep(0.001)

    def services(self, way):
        builder = self.node.service_builder(iceoryx2.ServiceName.new(f"{self.name}-{way}"))
        data = builder.publish_subscribe(iceoryx2.Slice[ctypes.c_uint8]).max_publishers(1).max_subscribers(1)
        builder = self.node.service_builder(iceoryx2.ServiceName.new(f"{self.name}-{way}"))
        return data.open_or_create(), builder.event().max_notifiers(1).max_listeners(1).open_or_create()

    def send(self, buffer):
        sample = self.publisher.loan_slice_uninit(len(buffer))
        copy_bytes(sample.payload_ptr, address(buffer), len(buffer))
        sample.assume_init().send()
        self.notifier.notify()

    def sample(self):
        while (sample := self.subscriber.receive()) is None:
            self.listener.blocking_wait()
        return sample

    def receive(self, buffer):
        sample = self.sample()
        copy_bytes(address(buffer), sample.payload_ptr, len(buffer))
        sample.delete()
        return buffer

    def close(self):
        """Removes what lies in /dev/shm and in iceoryx2's folder."""
        for port in (self.subscriber, self.listener, self.publisher, self.notifier):
            port.delete()
        del self.subscriber, self.listener, self.publisher, self.notifier, self.kept, self.node


class InPlace(Iceoryx2):
    """The reader looks at the sample, which it gives back when the next one has come."""

    arrived = None

    def receive(self, buffer):
        before, self.arrived = self.arrived, self.sample()
        if before is not None:
            before.delete()
        return (ctypes.c_uint8 * len(buffer)).from_address(self.arrived.payload_ptr)

    def close(self):
        if self.arrived is not None:
            self.arrived.delete()
        super().close()


copy_bytes = ctypes.CDLL(None).memcpy
copy_bytes.argtypes, copy_bytes.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), None


def address(buffer):
    if isinstance(buffer, ctypes.Array):
        return ctypes.addressof(buffer)
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def echo(means):
    for each in means:
        each.open(False)
    for size in SIZES:
        buffer, is_last = bytearray(size), False
        while not is_last:
            for each in means:
                arrived = each.receive(buffer)
                each.send(arrived)
                is_last = bool(arrived[0])


def compare(each, size):
    """Ends the run if random bytes do not come back as they were sent."""
    sent, returned = bytearray(os.urandom(size)), bytearray(size)
    sent[0] = 0
    each.send(sent)
    if bytes(each.receive(returned)) != sent:
        sys.exit(f"{type(each).__name__}: {size} bytes did not come back as they were sent")


def figures(size, medians):
    """Prints lines for adma-bench."""
    name = NAMES[size]
    for kind, median in medians.items():
        print(f"@ipc-python.us.{name}.{kind.__name__},{median},,")
    best = min(median for kind, median in medians.items() if kind not in (Adma, InPlace))
    print(f"@ipc-python.{name}.best,{best / medians[Adma]},,")
    if InPlace in medians:
        print(f"@ipc-python.{name}.in_place,{medians[InPlace] / medians[Adma]},,", flush=True)


def close(means):
    for each in means:
        if isinstance(each, Iceoryx2):
            each.close()


def main():
    kinds = [Adma, Socket, Pipe, SharedMemory] + ([Zmq] if zmq else [])
    kinds += [Iceoryx2, InPlace] if iceoryx2 else []
    with tempfile.TemporaryDirectory() as folder:
        means = [kind(folder) for kind in kinds]
        over, tell = os.pipe()
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            try:
                os.close(tell)
                echo(means)
                os.read(over, 1)  # pyzmq sends large messages after send() has returned
                close(means)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        for each in means:
            each.open(True)
        for module, found in (("pyzmq", zmq), ("iceoryx2", iceoryx2)):
            if not found:
                print(f"{module} is left out: this Python has no such module (bench/programs/install)")
        print(f"{'size':>10}" + "".join(f"{kind.__name__:>14}" for kind in kinds) + "   us, half a round trip")
        for size in SIZES:
            for each in means:
                compare(each, size)
            buffer, times = bytearray(size), [[] for _ in means]
            end = time.perf_counter() + options.seconds
            while not buffer[0]:
                buffer[0] = time.perf_counter() > end  # tells the other side that this is the last
                for each, taken in zip(means, times):
                    begun = time.perf_counter()
                    each.send(buffer)
                    each.receive(buffer)
                    taken.append(time.perf_counter() - begun)
            medians = [statistics.median(taken) / 2 * 1e6 for taken in times]
            print(f"{size:>10}" + "".join(f"{median:>14.1f}" for median in medians))
            figures(size, dict(zip(kinds, medians)))
        os.close(tell)
        os.waitpid(child, 0)
        close(means)
        return means


kept = main()
sys.stdout.flush()
os._exit(0)  # SharedMemory would complain of its views

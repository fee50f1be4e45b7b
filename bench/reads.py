"""Times reads of a file in the page cache; run by adma-bench with and without the shim.

usage: reads.py SECONDS FOLDER [SIZE,...]
Prints one line for each case: what reads, size, median nanoseconds of a read.
What is not installed (numpy, pyarrow, h5py, torch) is left out. `cold` has the file dropped from
the page cache before each read. Sizes of files are in mebibytes.
"""

import contextlib
import os
import sys
import time

SIZES = "1,4,16,64,256,1024"


def median(read, seconds, before=None):
    """The median time of reads that follow each other."""
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds or len(times) < 5:
        if before:
            before()
        begun = time.perf_counter_ns()
        kept = read()
        times.append(time.perf_counter_ns() - begun)
        del kept
    times = sorted(times[len(times) // 5 :])
    return times[len(times) // 2]


def whole(path):
    with open(path, "rb") as file:
        return file.read()


def into(path, buffer):
    with open(path, "rb", buffering=0) as file:
        assert file.readinto(buffer) == len(buffer)


def drop(path):
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def make(path, size):
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def modules(path, size):
    """Reads by way of the libraries that are installed."""
    try:
        import numpy as np
    except ImportError:
        return
    values = np.fromfile(path, dtype=np.uint8)
    yield "np_fromfile", lambda: np.fromfile(path, dtype=np.uint8)
    np.save(path + ".npy", values)
    yield "np_load", lambda: np.load(path + ".npy")
    os.unlink(path + ".npy")
    name = path + ".other"
    with contextlib.suppress(ImportError):
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({"a": values.view(np.float64)})
        pq.write_table(table, name, compression="none", use_dictionary=False)
        yield "parquet", lambda: pq.read_table(name, use_threads=False, memory_map=False)
    with contextlib.suppress(ImportError):
        import h5py

        with h5py.File(name, "w") as file:
            file["a"] = values
        yield "h5py", lambda: h5py.File(name, "r")["a"][:]
    with contextlib.suppress(ImportError):
        import torch

        torch.save(torch.from_numpy(values), name)
        yield "torch_load", lambda: torch.load(name)


def main():
    seconds, folder = float(sys.argv[1]), sys.argv[2]
    sizes = sys.argv[3] if len(sys.argv) > 3 else SIZES
    path = os.path.join(folder, f"adma-reads-{os.getpid()}")
    try:
        for mib in map(int, sizes.split(",")):
            size = mib << 20
            make(path, size)
            buffer = bytearray(size)
            cases = [
                ("read", lambda: whole(path), None),
                ("readinto", lambda: into(path, buffer), None),
                ("cold", lambda: into(path, buffer), lambda: drop(path)),
            ]
            for name, read, before in cases:
                print(name, f"{mib}M", median(read, seconds, before), flush=True)
            into(path, buffer)
            del buffer, cases
            for name, read in modules(path, size):
                print(name, f"{mib}M", median(read, seconds), flush=True)
    finally:
        for left in os.listdir(folder):
            if left.startswith(os.path.basename(path)):
                os.unlink(os.path.join(folder, left))


if __name__ == "__main__":
    main()

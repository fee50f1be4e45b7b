"""Reads of a file in the page cache, by Python itself and by libraries that may be installed.

As a job of `bench/run programs` it reads a file of 256 MiB. `bench/run reads` starts `reads_jobs.py
serve 0` once with the library and once without. Each line "JOB MEBIBYTES SECONDS" is one turn; the
answer is the median of its reads in nanoseconds, or why there is none.
"""

import functools
import os
import statistics
import sys
import time
from importlib import import_module

from work import CHECK, FOLDER, MIB, check, main, repeat


def write(path, data, *_):
    with open(path, "wb") as file:
        file.write(data)


def write_table(path, data, pq):
    table = import_module("pyarrow").table({"a": memoryview(data).cast("d")})
    pq.write_table(table, path, compression="none", use_dictionary=False)


def write_set(path, data, h5py):
    with h5py.File(path, "w") as file:
        file["a"] = memoryview(data)


def write_tensor(path, data, torch):
    torch.save(torch.frombuffer(bytearray(data), dtype=torch.uint8), path)


def whole(path, *_):
    with open(path, "rb") as file:
        return file.read()


def into(path, _, buffer):
    with open(path, "rb", buffering=0) as file:
        check(file.readinto(buffer) == len(buffer))
    return buffer


def drop(path):
    """Out of the page cache, which keeps pages that have not reached the disk."""
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# Name: module, what writes the file, what reads it.
JOBS = {
    "read": ("os", write, whole),
    "readinto": ("os", write, into),
    "cold": ("os", write, into),
    "np_fromfile": ("numpy", write, lambda path, np, _: np.fromfile(path, np.uint8)),
    "np_load": ("numpy", lambda path, data, np: np.save(path, np.frombuffer(data, np.uint8)),
                lambda path, np, _: np.load(path)),
    "parquet": ("pyarrow.parquet", write_table,
                lambda path, pq, _: pq.read_table(path, use_threads=False, memory_map=False)["a"]),
    "h5py": ("h5py", write_set, lambda path, h5py, _: h5py.File(path, "r")["a"][:]),
    "torch_load": ("torch", write_tensor, lambda path, torch, _: torch.load(path)),
}


def prepare(name, size):
    """What comes before each read, and the read; the first process that comes makes the file."""
    module, write_file, read = JOBS[name]
    module = import_module(module)
    path = os.path.join(FOLDER, f"{name}-{size // MIB}M.npy")
    if not os.path.exists(path):
        write_file(path, os.urandom(MIB) * (size // MIB), module)
    buffer = bytearray(size if read is into else 0)
    before = functools.partial(drop, path) if name == "cold" else int
    return before, functools.partial(read, path, module, buffer)


def turn(before, read, seconds):
    """The median time of reads that follow each other."""
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        before()
        begun = time.perf_counter_ns()
        kept = read()
        times.append(time.perf_counter_ns() - begun)
        del kept
    return statistics.median(times)


def serve(_):
    """Has a turn for each line; what the one before has prepared is kept."""
    prepared = functools.lru_cache(maxsize=1)(prepare)
    for line in sys.stdin:
        name, mebibytes, seconds = line.split()
        try:
            print(turn(*prepared(name, int(mebibytes) * MIB), float(seconds)), flush=True)
        except ImportError as error:
            print(error, flush=True)


def once(name, count):
    """As a whole run, of what is in the page cache when the clock starts."""
    _, read = prepare(name, 256 * MIB)
    read()
    data = repeat(count, read)
    if CHECK:
        view = memoryview(data if name == "read" else import_module("numpy").asarray(data)).cast("B")
        check(len(view) == 256 * MIB and view[:MIB] == view[-MIB:])


if __name__ == "__main__":
    main({"serve": serve} | {name: functools.partial(once, name) for name in JOBS})

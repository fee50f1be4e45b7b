"""numpy: what arrays are copied by; pandas, pyarrow and h5py, which hold arrays."""

import os
from multiprocessing import shared_memory

import numpy as np
from work import CHECK, FOLDER, MIB, OWN_THREADS, beside, check, clock, digest, main, repeat


def numbers(mib, first=0):
    """An array of that many MiB with a number of its own in every place."""
    return np.arange(first, first + mib * MIB // 8, dtype=np.float64)


def same(a, b):
    if CHECK:
        check(np.array_equal(a, b))


def copyto(count):
    """Copies into one array, again and again."""
    src = numbers(256)
    dst = np.empty_like(src)
    repeat(count, lambda: np.copyto(dst, src))
    same(dst, src)


def copy(count):
    """Copies into new arrays."""
    src = numbers(256)
    same(repeat(count, src.copy), src)


def mapped(count):
    """Reads a mapped file into memory."""
    path = os.path.join(FOLDER, "mapped-512M")
    if not os.path.exists(path) or os.path.getsize(path) != 512 * MIB:
        numbers(512).tofile(path)
    src = np.memmap(path, mode="r")
    same(repeat(count, lambda: np.array(src)), src)


def roll(count):
    src = numbers(256)
    dst = repeat(count, lambda: np.roll(src, 12345))
    same(dst[12345:], src[:-12345])


def concatenate(count):
    parts = [numbers(64, part) for part in range(8)]
    whole = repeat(count, lambda: np.concatenate(parts))
    same(whole.reshape(8, -1)[7], parts[7])


def stack(count):
    parts = [numbers(32, part) for part in range(8)]
    same(repeat(count, lambda: np.stack(parts))[7], parts[7])


def slices(count):
    """Frames of 16 MiB go into a ring of 32, as a camera's do."""
    frames = [numbers(16, frame) for frame in range(4)]
    ring = np.empty((32, *frames[0].shape))
    with clock():
        for number in range(count):
            ring[number % 32] = frames[number % 4]
    same(ring[(count - 1) % 32], frames[(count - 1) % 4])


def received(pipe, count):
    """The other end of `pickled`."""
    pipe.send("ready")
    for _ in range(count):
        array = pipe.recv()
    pipe.send(digest(array))


def pickled(count):
    """Sends arrays of 64 MiB to another process through a pipe."""
    src = numbers(64)
    ours, other = beside(received, count)
    with clock():
        for _ in range(count):
            ours.send(src)
        theirs_digest = ours.recv()
    other.join()
    check(theirs_digest == digest(src))


def taken(pipe, name, count):
    """The other end of `shared`."""
    pipe.send("ready")
    memory = shared_memory.SharedMemory(name)
    view = np.ndarray(memory.size // 8, buffer=memory.buf)
    for _ in range(count):
        pipe.recv()
        array = view.copy()
        pipe.send(None)
    pipe.send(digest(array))
    del view
    memory.close()


def shared(count):
    """Hands arrays of 64 MiB to another process in shared memory."""
    src = numbers(64)
    memory = shared_memory.SharedMemory(create=True, size=src.nbytes)
    view = np.ndarray(src.shape, buffer=memory.buf)
    ours, other = beside(taken, memory.name, count)
    with clock():
        for _ in range(count):
            view[:] = src
            ours.send(None)
            ours.recv()
    theirs_digest = ours.recv()
    other.join()
    del view
    memory.close()
    memory.unlink()
    check(theirs_digest == digest(src))


def arrow_ipc(count):
    """A table of 256 MiB becomes an IPC stream in memory and a table again."""
    import pyarrow as pa

    table = pa.table({f"c{number}": numbers(64, number) for number in range(4)})

    def there_and_back():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return pa.ipc.open_stream(sink.getvalue()).read_all()

    again = repeat(count, there_and_back)
    check(not CHECK or again.equals(table))


def arrow_write(count):
    """Writes 256 MiB into a buffer: by one copy, or by pyarrow's own threads, one on each CPU."""
    import pyarrow as pa

    src, dst = pa.py_buffer(numbers(256)), pa.py_buffer(bytearray(256 * MIB))
    threads = len(os.sched_getaffinity(0)) if OWN_THREADS else 1

    def write():
        with pa.FixedSizeBufferWriter(dst) as writer:
            writer.set_memcopy_threads(threads)
            writer.write(src)

    repeat(count, write)
    check(not CHECK or dst.equals(src))


def hdf5_core(count):
    """Data sets of 64 MiB are written and read in a file in memory (core driver)."""
    import h5py

    data = numbers(64)
    with h5py.File("memory", "w", driver="core", backing_store=False, block_size=64 * MIB) as file:
        with clock():
            for number in range(count):
                file[f"set{number % 4}"] = data
                again = file[f"set{number % 4}"][:]
                if number >= 3:
                    del file[f"set{(number + 1) % 4}"]
        same(again, data)


def frames(count):
    """Tables of a million rows, eight columns of numbers: 64 MB each."""
    from pandas import DataFrame

    return [DataFrame(np.arange(part, part + 8e6).reshape(-1, 8)) for part in range(count)]


def frames_concat(count):
    import pandas as pd

    parts = frames(6)
    whole = repeat(count, lambda: pd.concat(parts, ignore_index=True))
    same(whole[-1_000_000:], parts[5])


def frames_filter(count):
    """Two rows of three."""
    import pandas as pd

    frame = pd.concat(frames(4), ignore_index=True)
    keep = frame.index % 3 != 0
    some = repeat(count, lambda: frame[keep])
    same(some, frame.to_numpy()[keep])
    same(some.index, np.flatnonzero(keep))


if __name__ == "__main__":
    jobs = (copyto, copy, mapped, roll, concatenate, stack, slices, pickled, shared, arrow_ipc,
            arrow_write, hdf5_core, frames_concat, frames_filter)
    main({job.__name__: job for job in jobs})

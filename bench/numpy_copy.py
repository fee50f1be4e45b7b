"""Times np.copyto; run by adma-bench with and without the shim.

usage: numpy_copy.py [SECONDS [COLD_BYTES]]
Prints one line for each case: heat, size, median nanoseconds of a copy.
Cold copies rotate through pairs of arrays that take COLD_BYTES together.
"""

import sys
import time

import numpy as np

MIB = 1 << 20


def median_copy(pairs, seconds):
    """The median time of copies that take turns over the pairs."""
    times = []
    start = time.perf_counter()
    warm = None  # copies before it let the shim learn
    while True:
        for dst, src in pairs:
            before = time.perf_counter_ns()
            np.copyto(dst, src)
            times.append(time.perf_counter_ns() - before)
        elapsed = time.perf_counter() - start
        if warm is None and elapsed > 0.3 * seconds and len(times) >= 20:
            warm = len(times)
        if elapsed > seconds and warm is not None and len(times) >= warm + 20:
            return int(np.median(times[warm:]))


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    cold = int(sys.argv[2]) if len(sys.argv) > 2 else 1024 * MIB
    for size in 64 * MIB, 4 * MIB:
        count = max(2, cold // (2 * size))
        pairs = [(np.zeros(size // 8), np.ones(size // 8)) for _ in range(count)]
        for dst, src in pairs:
            np.copyto(dst, src)  # no page is missing when the clock runs
        for heat, chosen in ("cold", pairs), ("hot", pairs[:1]):
            print(heat, f"{size // MIB}M", median_copy(chosen, seconds), flush=True)
        assert all((dst == src).all() for dst, src in pairs)


if __name__ == "__main__":
    main()

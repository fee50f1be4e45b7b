"""Copies of an unmodified numpy, each compared with what it should be."""
import sys
import time
import numpy as np

LEN = 8 << 20  # of doubles: 64 MiB
rng = np.random.default_rng(1)
a, b = rng.random(LEN), np.empty(LEN)
b[:] = 0
wrong = 0
begun = time.monotonic()
rounds = 0
while time.monotonic() - begun < float(sys.argv[1]):
    a[rounds % LEN] = rounds
    np.copyto(b, a)
    wrong += not np.array_equal(a, b)
    fresh = a.copy()  # memory that comes and goes, at the same address every time
    wrong += not np.array_equal(a, fresh)
    fresh[:] = rounds
    np.copyto(b, fresh)
    wrong += not np.array_equal(b, fresh)
    del fresh
    joined = np.concatenate([a[: LEN // 2], b[: LEN // 2]])
    wrong += not (np.array_equal(joined[: LEN // 2], a[: LEN // 2])
                  and np.array_equal(joined[LEN // 2:], b[: LEN // 2]))
    rolled = np.roll(a, 1000)
    wrong += not np.array_equal(rolled[1000:], a[:-1000])
    rounds += 1
print(f"  numpy {np.__version__}: {rounds} rounds of 5 copies, {wrong} wrong")
sys.exit(wrong != 0)

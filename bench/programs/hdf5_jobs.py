"""h5py: a file in memory (core driver), in which data sets of 64 MiB are written and read."""

import h5py
import numpy as np
from work import CHECK, MIB, check, clock, main


def core(count):
    data = np.arange(64 * MIB // 8, dtype=np.float64)
    with h5py.File("memory", "w", driver="core", backing_store=False, block_size=64 * MIB) as file:
        with clock():
            for number in range(count):
                file[f"set{number % 4}"] = data
                again = file[f"set{number % 4}"][:]
                if number >= 3:
                    del file[f"set{(number + 1) % 4}"]
        if CHECK:
            check(np.array_equal(again, data))


if __name__ == "__main__":
    main({"core": core})

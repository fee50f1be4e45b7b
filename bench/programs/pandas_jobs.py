"""pandas: tables of eight columns of numbers."""

import numpy as np
import pandas as pd
from work import CHECK, check, main, repeat

ROWS = 1_000_000


def table(first):
    """64 MB."""
    values = np.arange(first, first + ROWS * 8, dtype=np.float64).reshape(ROWS, 8)
    return pd.DataFrame(values, columns=list("abcdefgh"))


def concat(count):
    parts = [table(part) for part in range(6)]
    whole = repeat(count, lambda: pd.concat(parts, ignore_index=True))
    if CHECK:
        check(whole.iloc[5 * ROWS :].reset_index(drop=True).equals(parts[5]))


def filtered(count):
    """Two rows of three."""
    frame = pd.concat([table(part) for part in range(4)], ignore_index=True)
    keep = frame.index % 3 != 0
    some = repeat(count, lambda: frame[keep])
    if CHECK:
        check(np.array_equal(some.to_numpy(), frame.to_numpy()[keep]))
        check(np.array_equal(some.index, np.flatnonzero(keep)))


if __name__ == "__main__":
    main({"concat": concat, "filter": filtered})

"""A day of sensor data: four workers clean and stack blocks, the parent gathers them."""
import multiprocessing, sys
import numpy as np

def work(number):
    rng = np.random.default_rng(number)
    blocks = [rng.random(int(n)) for n in rng.integers(20_000, 1_500_000, 24)]
    shifted = [np.roll(block, number + 1) for block in blocks]
    whole = np.concatenate(shifted)
    for _ in range(6):
        whole = whole.copy()
        whole[5:] = whole[:-5]
    return whole[: 2_000_000]

if __name__ == "__main__":
    pool = multiprocessing.get_context("spawn").Pool(4)
    parts = pool.map(work, range(8))
    pool.close()
    pool.join()
    table = np.vstack([part[:1_000_000] for part in parts])
    for _ in range(40):
        table = table.copy()
    print(table.shape)

#!/usr/bin/env python3
"""What neighbours lose while one process copies all the time, by ADMA_CHANNELS.

    bench/neighbours.py [path/to/libadma.so]

Neighbours are processes without the library, on half of the CPUs, each of which reads its own
256 MiB again and again. In each round every arm has one turn, in random order: nobody copies; a
process copies 64 MiB after 64 MiB without the library; with default knobs; with fewer channels."""
import multiprocessing, os, random, subprocess, sys, time
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else HERE + "/../target/release/libadma.so")
ARMS = {"nobody": None, "libc": {}, "default": {"LD_PRELOAD": LIBRARY}}
for count in "2", "4":
    ARMS["ADMA_CHANNELS=" + count] = {"LD_PRELOAD": LIBRARY, "ADMA_CHANNELS": count}
ROUNDS, SECONDS, MEGA = 3, 0.8, 1 << 20

COPIER = """
import sys, time
import numpy as np
a, b = ([np.full(8 << 20, 1.0) for _ in range(6)] for _ in range(2))
for x, y in zip(a, b): np.copyto(y, x)
print("ready", flush=True)
sys.stdin.readline()
begun, copies = time.monotonic(), 0
while time.monotonic() < begun + float(sys.argv[1]):
    np.copyto(b[copies % 6], a[copies % 6])
    copies += 1
print(copies / 16 / (time.monotonic() - begun))
"""


def neighbour(count, over):
    room, at = np.ones(32 * MEGA), 0
    while not over.value:
        room[at : at + MEGA].sum()
        at = (at + MEGA) % len(room)
        count.value += 1


def turn(environment, counts):
    """Reads of 8 MiB by neighbours, and GiB copied, in a second."""
    if environment is not None:
        copier = subprocess.Popen([sys.executable, "-c", COPIER, str(SECONDS + 0.2)], text=True,
                                  env={**os.environ, **environment},
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        copier.stdout.readline()
        copier.stdin.write("go\n")
        copier.stdin.flush()
    time.sleep(0.1)
    before, begun = sum(count.value for count in counts), time.monotonic()
    time.sleep(SECONDS)
    rate = (sum(count.value for count in counts) - before) / (time.monotonic() - begun)
    copied = float(copier.communicate()[0]) if environment is not None else 0.0
    return rate, copied


def main():
    over = multiprocessing.Value("b", 0, lock=False)
    how_many = max(len(os.sched_getaffinity(0)) // 2, 1)
    counts = [multiprocessing.Value("q", 0, lock=False) for _ in range(how_many)]
    neighbours = [multiprocessing.Process(target=neighbour, args=(count, over)) for count in counts]
    for process in neighbours:
        process.start()
    while any(count.value < 64 for count in counts):
        time.sleep(0.01)
    seen = {arm: [] for arm in ARMS}
    for _ in range(ROUNDS):
        for arm in random.sample(list(ARMS), len(ARMS)):
            seen[arm].append(turn(ARMS[arm], counts))
    over.value = 1
    for process in neighbours:
        process.join()
    print(f"{how_many} neighbours, {ROUNDS} rounds")
    for arm, turns in seen.items():
        gains = [one[0] / default[0] for one, default in zip(turns, seen["default"])]
        low, gain, high = np.quantile(gains, [0.25, 0.5, 0.75])
        copied = np.median([one[1] for one in turns])
        print(f"  {arm:16} neighbours x default {gain:.2f} ({low:.2f}-{high:.2f})"
              f"   copied {copied:5.1f} GiB/s")


if __name__ == "__main__":
    main()

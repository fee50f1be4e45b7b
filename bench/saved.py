#!/usr/bin/env python3
"""Whether the time that adma says a run would have taken without it is true.

Each job runs plain and with adma in turn. The claim of a run with adma,
"took A, without adma about B (LOW to HIGH)", is right if the mean of the
plain runs before and after it lies between LOW and HIGH, and these are no
further apart than half of that. "not known" claims nothing.

Fails if fewer than nine of ten claims are right, or if fewer than half of
the runs claim anything, those of jobs left out that compete with others or
with themselves: of these nothing need be claimed.

"counting", only when named, is another question: what statistics and call
sites cost copies of 256 KiB to 1 MiB. Two processes with the library, one of
which counts, copy in turn, a tenth of a second each.

usage: saved.py [--quick] [--rounds N] [--adma COMMAND] [job ... | counting]
"""
import argparse, os, pathlib, re, statistics, subprocess, sys, tempfile, time

HERE = pathlib.Path(__file__).resolve().parent
BUILT = HERE.parent / "target" / "release" / "adma"

# Two buffers that were written, and a copy between them, for which Python lets other threads run.
# Several pairs lie in more memory than caches hold; of calls that find all in the cache little is claimed.
COPY = """import ctypes
def buffers(mebibytes):
    return [ctypes.create_string_buffer(int(mebibytes * 2**20)) for _ in range(2)]
def copy(pair):
    ctypes.memmove(pair[1], pair[0], len(pair[0]))
"""
# Name, what it does, Python that does it, or the job whose Python it is.
JOBS = {
    "one": ("one process, 32 MiB copies and some arithmetic", COPY + """
pairs = [buffers(32) for _ in range(8)]
for i in range(96):
    copy(pairs[i % 8]); sum(range(100_000))"""),
    "middle": ("copies of 2 MiB", COPY + """
pair = buffers(2)
for _ in range(4000): copy(pair)"""),
    "small": ("copies of 512 KiB between many places", COPY + """
pairs = [buffers(0.5) for _ in range(200)]
for _ in range(40):
    for pair in pairs: copy(pair)"""),
    "fresh": ("README's example: memory never touched", """
a = bytes(64 << 20); b = [bytearray(a) for i in range(20)]"""),
    "fills": ("memory that is filled again and again", """
import ctypes
rooms = [ctypes.create_string_buffer(64 << 20) for _ in range(8)]
for i in range(96): ctypes.memset(rooms[i % 8], i, 64 << 20)"""),
    "compares": ("buffers that are equal", """
a = bytes(64 << 20); b = bytes(bytearray(a))
for _ in range(60): a == b"""),
    "mixed": ("copies of 512 KiB to 64 MiB, fresh memory and arithmetic", COPY + """
pairs = [buffers(0.5 * 2 ** i) for i in range(8)]
for _ in range(8):
    for pair in pairs: copy(pair)
    new = bytearray(pair[0]); sum(range(500_000))"""),
    "large": ("one copy of 512 MiB only", COPY + """
copy(buffers(512))"""),
    "reads": ("a cached file of 128 MiB, read again and again", """
import os
f = open(os.environ["SAVED_FILE"], "rb", buffering=0); rooms = [bytearray(128 << 20) for _ in range(3)]
for i in range(24):
    f.seek(0); f.readinto(rooms[i % 3])"""),
    "loads": ("a cached file of 128 MiB, read into new memory", """
import os
for _ in range(12): open(os.environ["SAVED_FILE"], "rb").read()"""),
    "joins": ("pieces of 1 MiB joined", """
import os
pieces = [os.urandom(1 << 20) for _ in range(64)]
for _ in range(40): b"".join(pieces)"""),
    "pool": ("four workers that copy at once", COPY + """
import multiprocessing
def work(n):
    pair = buffers(32)
    for _ in range(20): copy(pair)
if __name__ == "__main__":
    with multiprocessing.Pool(4) as pool: pool.map(work, range(4))"""),
    "threads": ("four threads that copy at once", COPY + """
import threading
def work():
    pair = buffers(32)
    for _ in range(20): copy(pair)
all = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in all]; [t.join() for t in all]"""),
    "pauses": ("threads that copy and pause, on as many CPUs at most", COPY + """
import os, threading, time
def work():
    pairs = [buffers(32) for _ in range(4)]
    for i in range(60): copy(pairs[i % 4]); time.sleep(0.004)
all = [threading.Thread(target=work) for _ in range(min(4, len(os.sched_getaffinity(0))))]
[t.start() for t in all]; [t.join() for t in all]"""),
    "programs": ("four programs at once", "one"),
    "busy": ("one process on a busy machine", "one"),
    "helper": ("the kernel helper (-b dma)", "one"),
}


# Copies for a tenth of a second at each line of input; answers with seconds for a copy.
TURNS = COPY + """
import sys, time
import random
size, room = int(float(sys.argv[1]) * 2**20), 2**16
kept = buffers((size + room) / 2**20)
pair = [ctypes.addressof(buffer) for buffer in kept]
for _ in sys.stdin:
    # Where buffers lie in their pages makes more difference than what is measured.
    to, source = (start + 64 * random.randrange(room // 64) for start in pair)
    begun, copies = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < 0.1:
        for _ in range(16): ctypes.memmove(to, source, size)
        copies += 16
    print(passed / copies, flush=True)"""
# Jobs that compete with others, or with themselves.
COMPETE = ("pool", "threads", "pauses", "programs", "busy")


def counting(rounds, library):
    print(f"{'copies of':<11}{'not counted':>12}{'counted':>12}   time counted / not: median (quartiles)")
    for size, name in ((0.25, "256 KiB"), (0.5, "512 KiB"), (1, "1 MiB")):
        arms = []
        for stats in ("off", "json"):
            env = {**os.environ, "LD_PRELOAD": str(library), "ADMA_STATS": stats,
                   "ADMA_STATS_FILE": "/dev/null"}
            arms.append(subprocess.Popen([sys.executable, "-c", TURNS, str(size)], env=env, text=True,
                                         bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        def turn(arm):
            arm.stdin.write("\n")
            return float(arm.stdout.readline())
        [turn(arm) for _ in range(5) for arm in arms]  # until sizes are learned
        both = [[turn(arm) for arm in arms] for _ in range(8 * rounds)]
        for arm in arms:
            arm.stdin.close()
            arm.wait()
        low, middle, high = statistics.quantiles([b / a for a, b in both], n=4)
        off, on = (statistics.median(times) * 1e6 for times in zip(*both))
        print(f"{name:<11}{off:>9.1f} us{on:>9.1f} us   {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)
    return 0


def command(job, folder):
    source = JOBS[job][1]
    source = JOBS[source][1] if source in JOBS else source
    script = folder / f"{job}.py"
    script.write_text(source)
    if job == "programs":
        one = f"{sys.executable} {script}"
        return ["sh", "-c", f"{one} & {one} & {one} & {one} & wait"]
    return [sys.executable, str(script)]


def seconds(words):
    begun = time.monotonic()
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{words}: {done.stderr}")
    return time.monotonic() - begun, done.stderr


def claim(told):
    """Bounds in seconds and what rounding adds to each, or the reason why there are none."""
    known = re.search(r"without adma about [\d.]+ (\w+) \(([\d.]+) to ([\d.]+)\)", told)
    if not known:
        why = re.search(r"(?:without adma not known: |(?=no difference to speak of))(.*)", told)
        return None, why[1] if why else "nothing was carried"
    unit, low, high = known.groups()
    scale = {"s": 1, "ms": 1e-3, "us": 1e-6}[unit]
    half = 0.5 * 10 ** -(len(low.partition(".")[2]))  # of the last digit shown
    return (float(low) * scale, float(high) * scale, half * scale), None


def main():
    options = argparse.ArgumentParser(description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--quick", action="store_const", const=3, dest="rounds",
                         help="three rounds")
    options.add_argument("--adma", default=str(BUILT))
    options.add_argument("jobs", nargs="*", metavar="job", choices=[[], *JOBS, "counting"])
    wish = options.parse_args()
    if wish.jobs == ["counting"]:
        return counting(wish.rounds, pathlib.Path(wish.adma).resolve().with_name("libadma.so"))
    sums = {"right": 0, "known": 0, "runs": 0, "wide": 0}
    may_claim = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cached = folder / "cached"
        cached.write_bytes(bytes(128 << 20))
        os.environ["SAVED_FILE"] = str(cached)
        print(f"{'job':<9}{'plain':>9}{'with':>9}{'claimed':>18}{'right':>9}{'wide':>6}  not known")
        for job in wish.jobs or JOBS:
            if job == "helper" and not os.path.exists("/dev/adma"):
                print(f"{job:<9} skipped: no /dev/adma")
                continue
            row = measure(job, command(job, folder), wish)
            for key in sums:
                sums[key] += row[key]
            may_claim += 0 if job in COMPETE else row["runs"]
    print(f"right: {sums['right']} of {sums['known']} claims, too wide: {sums['wide']}; "
          f"not known {sums['runs'] - sums['known']} of {sums['runs']} runs")
    faults = [words for bad, words in (
        (sums["right"] < 0.9 * sums["known"], "fewer than nine of ten claims are right"),
        (2 * sums["known"] < may_claim, "fewer than half of the runs claim anything"),
    ) if bad]
    print("NOT as it should be: " + "; ".join(faults) if faults else "as it should be")
    return 1 if faults else 0


def measure(job, words, wish):
    hogs = []
    if job == "busy":
        hog = [sys.executable, "-c", "while True: pass"]
        hogs = [subprocess.Popen(hog) for _ in os.sched_getaffinity(0)]
    try:
        dma = ["-b", "dma"] if job == "helper" else []
        before, plains, withs, bounds, reasons, right, wide = seconds(words)[0], [], [], [], [], 0, 0
        for _ in range(wish.rounds):
            took, told = seconds([wish.adma, *dma, *words])
            after = seconds(words)[0]
            plain, before = (before + after) / 2, after
            found, why = claim(told)
            plains.append(plain)
            withs.append(took)
            if why:
                reasons.append(why)
                continue
            low, high, half = found
            bounds.append((low, high))
            is_wide = high - low > plain / 2
            wide += is_wide
            right += not is_wide and low - half <= plain <= high + half
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    middle = [statistics.median(bound) for bound in zip(*bounds)] if bounds else None
    claimed = f"{middle[0]:.2f} to {middle[1]:.2f}" if middle else "-"
    part = f"{right}/{len(bounds)}" if bounds else "-"
    print(f"{job:<9}{statistics.median(plains):>8.2f}s{statistics.median(withs):>8.2f}s{claimed:>18}"
          f"{part:>9}{wide:>6}  {'; '.join(f'{reasons.count(w)} x {w}' for w in sorted(set(reasons)))}",
          flush=True)
    return {"right": right, "known": len(bounds), "runs": wish.rounds, "wide": wide}


if __name__ == "__main__":
    sys.exit(main())

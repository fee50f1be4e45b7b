#!/usr/bin/env python3
"""Whether the time that adma says a run would have taken without it is true.

Each job runs plain and with adma in turn. The claim of a run with adma,
"took A, without adma about B (LOW to HIGH)", is right if the mean of the
plain runs before and after it lies between LOW and HIGH; the bounds may be
no further apart than half of that. "not known" claims nothing.

usage: saved.py [--rounds N] [--adma COMMAND] [job ...]
"""
import argparse, os, pathlib, re, statistics, subprocess, sys, tempfile, time

HERE = pathlib.Path(__file__).resolve().parent
BUILT = HERE.parent / "target" / "release" / "adma"

# Two buffers that were written, and a copy between them, for which Python lets other threads run.
COPY = """import ctypes
def buffers(mebibytes):
    return [ctypes.create_string_buffer(int(mebibytes * 2**20)) for _ in range(2)]
def copy(pair):
    ctypes.memmove(pair[1], pair[0], len(pair[0]))
"""
# Name, what it does, Python that does it, or the job whose Python it is.
JOBS = {
    "one": ("one process, 32 MiB copies and some arithmetic", COPY + """
pair = buffers(32)
for i in range(60):
    copy(pair); sum(range(100_000))"""),
    "middle": ("copies of 2 MiB", COPY + """
pair = buffers(2)
for _ in range(4000): copy(pair)"""),
    "small": ("copies of 512 KiB between many places", COPY + """
pairs = [buffers(0.5) for _ in range(200)]
for _ in range(40):
    for pair in pairs: copy(pair)"""),
    "fresh": ("README's example: memory never touched", """
a = bytes(64 << 20); b = [bytearray(a) for i in range(20)]"""),
    "large": ("one copy of 512 MiB only", COPY + """
copy(buffers(512))"""),
    "reads": ("a cached file of 128 MiB, read twenty times", """
import os
f = open(os.environ["SAVED_FILE"], "rb", buffering=0); room = bytearray(128 << 20)
for _ in range(20):
    f.seek(0); f.readinto(room)"""),
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
    "programs": ("four programs at once", "one"),
    "busy": ("one process on a busy machine", "one"),
    "helper": ("the kernel helper (-b dma)", "one"),
}


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
    """Bounds in seconds, or the reason why there are none."""
    known = re.search(r"without adma about [\d.]+ (\w+) \(([\d.]+) to ([\d.]+)\)", told)
    if not known:
        why = re.search(r"without adma not known: (.*)", told)
        return None, why[1] if why else "nothing was carried"
    unit, low, high = known.groups()
    scale = {"s": 1, "ms": 1e-3, "us": 1e-6}[unit]
    half = 0.5 * 10 ** -(len(low.partition(".")[2]))  # of the last digit shown
    return ((float(low) - half) * scale, (float(high) + half) * scale), None


def main():
    options = argparse.ArgumentParser(description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--adma", default=str(BUILT))
    options.add_argument("jobs", nargs="*", metavar="job", choices=[[], *JOBS])
    wish = options.parse_args()
    sums = {"inside": 0, "known": 0, "runs": 0, "wide": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cached = folder / "cached"
        cached.write_bytes(bytes(128 << 20))
        os.environ["SAVED_FILE"] = str(cached)
        print(f"{'job':<9}{'plain':>9}{'with':>9}{'claimed':>18}{'inside':>9}{'wide':>6}  not known")
        for job in wish.jobs or JOBS:
            if job == "helper" and not os.path.exists("/dev/adma"):
                print(f"{job:<9} skipped: no /dev/adma")
                continue
            row = measure(job, command(job, folder), wish)
            for key in sums:
                sums[key] += row[key]
    print(f"inside {sums['inside']} of {sums['known']} claims, too wide {sums['wide']}; "
          f"not known {sums['runs'] - sums['known']} of {sums['runs']} runs")
    good = sums["inside"] >= 0.9 * sums["known"] and sums["wide"] == 0
    print("as it should be" if good else "NOT as it should be: nine of ten inside, none too wide")
    return 0 if good else 1


def measure(job, words, wish):
    hogs = []
    if job == "busy":
        hog = [sys.executable, "-c", "while True: pass"]
        hogs = [subprocess.Popen(hog) for _ in range(os.cpu_count())]
    try:
        dma = ["-b", "dma"] if job == "helper" else []
        before, plains, withs, bounds, reasons, inside, wide = seconds(words)[0], [], [], [], [], 0, 0
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
            bounds.append(found)
            inside += found[0] <= plain <= found[1]
            wide += found[1] - found[0] > plain / 2
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    middle = [statistics.median(bound) for bound in zip(*bounds)] if bounds else None
    claimed = f"{middle[0]:.2f} to {middle[1]:.2f}" if middle else "-"
    part = f"{inside}/{len(bounds)}" if bounds else "-"
    print(f"{job:<9}{statistics.median(plains):>8.2f}s{statistics.median(withs):>8.2f}s{claimed:>18}"
          f"{part:>9}{wide:>6}  {'; '.join(f'{reasons.count(w)} x {w}' for w in sorted(set(reasons)))}",
          flush=True)
    return {"inside": inside, "known": len(bounds), "runs": wish.rounds, "wide": wide}


if __name__ == "__main__":
    sys.exit(main())

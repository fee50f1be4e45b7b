"""What the jobs share: a clock for the working part, checks, and programs they start.

A job is run by adma-bench as `JOB.py NAME COUNT`, with or without the library. It prints one
line, `work SECONDS`: what it took after imports and set-up. The environment says the rest:

BENCH_FOLDER   a folder for files; what is made there once is found there the next time
BENCH_CHECK    set in one run of each job, which is not timed: compare the results
BENCH_THREADS  set if the job is to copy with threads of its own, if it can
BENCH_PRELOAD  what the programs that the job starts are to have preloaded; the job itself is
               only their client then
"""

import contextlib
import ctypes
import multiprocessing
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

PRCTL, PR_SET_PDEATHSIG = ctypes.CDLL(None).prctl, 1

MIB = 1 << 20
CHECK = "BENCH_CHECK" in os.environ
OWN_THREADS = "BENCH_THREADS" in os.environ
FOLDER = os.environ.get("BENCH_FOLDER", tempfile.gettempdir())


@contextlib.contextmanager
def clock():
    """Times the working part."""
    start = time.perf_counter()
    yield
    print(f"work {time.perf_counter() - start:.6f}", flush=True)


def repeat(count, work):
    """Times `count` turns of the work; returns what the last one gave."""
    with clock():
        for _ in range(count):
            result = work()
    return result


def check(right, what="the result is wrong"):
    """Ends the job with a message if something is not right."""
    if not right:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {what}")


def digest(data):
    """What another process tells of its copy, where results are compared."""
    return zlib.crc32(data) if CHECK else None


def beside(target, *words):
    """Starts another process that calls `target`, and waits until it is ready; a pipe to it."""
    # A forked child of Python leaves by _exit, with no time to write statistics.
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    other = spawn.Process(target=target, args=(theirs, *words))
    other.start()
    ours.recv()
    return ours, other


def skip(reason):
    """Ends a job that cannot be done here."""
    print(reason, file=sys.stderr)
    sys.exit(77)


def main(jobs):
    """Runs the job that the command line names, as often as it says."""
    jobs[sys.argv[1]](int(sys.argv[2]))


def environment():
    """For the programs under test: what is to be preloaded there."""
    variables = dict(os.environ)
    if "BENCH_PRELOAD" in os.environ:
        variables["LD_PRELOAD"] = os.environ["BENCH_PRELOAD"]
    return variables


def start(command, user=None, **options):
    """Starts a program under test, as another user if it has to be."""
    if user:
        entry = pwd.getpwnam(user)
        options.update(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])
    # Whatever becomes of the job: its programs do not outlive it.
    options["preexec_fn"] = lambda: PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)
    return subprocess.Popen(command, env=environment(), **options)


def ready(answers, server, seconds=30):
    """Waits until the server answers."""
    end = time.monotonic() + seconds
    while not answers():
        check(server.poll() is None, f"the server ended early: {server.returncode}")
        check(time.monotonic() < end, f"the server is not ready after {seconds} s")
        time.sleep(0.005)


def listening(path):
    """Whether a server listens on a Unix socket: its file is there a moment before that."""
    with open("/proc/net/unix", encoding="utf-8") as sockets:
        fields = [line.split() for line in sockets]
    # Num RefCount Protocol Flags Type St Inode Path; the flag is __SO_ACCEPTCON.
    return any(line[3] == "00010000" and line[7:] == [path] for line in fields)


def stop(server, how, seconds=60):
    """Ends a server so that it can write its statistics, and waits for it."""
    server.send_signal(how)
    check(ended(server, seconds) == 0, f"the server's exit status is {server.returncode}")


def ended(program, seconds=60):
    """Waits for the end of a program; its exit status."""
    try:
        return program.wait(seconds)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
        sys.exit(f"{program.args[0]} does not end within {seconds} s")


@contextlib.contextmanager
def short_folder():
    """A new folder with a short name: the path of a socket has a hundred bytes at most."""
    folder = tempfile.mkdtemp(prefix="adma-bench-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

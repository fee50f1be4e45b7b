# For gdb: steps from a call of memcpy into the copy loop and stops in a worker's. At every step the
# backtrace must lead to the program's main, or to the function that workers begin in.
import gdb

LOOPS = ["adma_loop_movsb", "adma_loop_avx2", "adma_loop_stream_avx512", "adma_loop_stream_sse2"]


def backtrace():
    frame, names = gdb.newest_frame(), []
    while True:
        names.append(frame.name() or "?")
        older = frame.older()
        if older is None:
            return names, frame.unwind_stop_reason()
        frame = older


def expect(condition, what):
    if not condition:
        print("wrong:", what, "at", gdb.execute("x/i $pc", to_string=True), *backtrace())
        gdb.execute("quit 1")


for command in [
    "set pagination off",
    "set confirm off",
    "set startup-with-shell off",
    "set breakpoint pending on",
    "set debuginfod enabled off",
]:
    gdb.execute(command)
here = gdb.Breakpoint("copy_here")
here.ignore_count = 20  # the first copies bring the engine up
gdb.execute("run")
gdb.execute("set scheduler-locking step")
here.delete()

seen, steps = set(), 0
while not LOOPS.count(gdb.newest_frame().name()):
    gdb.execute("stepi", to_string=True)
    names, _ = backtrace()
    seen.update(names[:1])
    expect(names[-2:] == ["copy_here", "main"], "the caller's frames")
    steps += 1
    expect(steps < 20000, "the copy is never shared")
for _ in range(20):
    gdb.execute("stepi", to_string=True)
    names, _ = backtrace()
    expect(names[-2:] == ["copy_here", "main"], "the caller's frames in the loop")
expect(any("memcpy" in name for name in names), "no memcpy above its caller")
expect("memcpy" in seen, "the entry was not stepped through")
print("caller:", *names)

loops = [gdb.Breakpoint(name) for name in LOOPS]
for _ in range(10000):
    gdb.execute("continue", to_string=True)
    if gdb.selected_thread().name.startswith("adma-"):
        break
names, why = backtrace()
expect(names[0] in LOOPS and names[-1].startswith("adma::backend::threads::worker::begin"), "a worker's frames")
expect(why == gdb.FRAME_UNWIND_OUTERMOST, "a worker's last frame: %d" % why)
print("worker:", *names)
gdb.execute("kill")

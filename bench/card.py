"""Copies between memory that is not pinned and an NVIDIA card: CUDA's own way and adma, in turn.

    bench/run card                      copies by size, then jobs
    bench/run card copies [MiB ...]     cudaMemcpy in one process: the runtime's own, and what a program gets
    bench/run card jobs                 jobs of PyTorch: one process with the library and one without

Needs PyTorch with CUDA. Figures are medians of seven turns after one that is not counted; copies have their
lowest and highest but one as well, and the CPU time for each GB. For fewer CPUs: taskset -c 0,1 bench/run card.
"""
import ctypes
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

TURNS = 7
TO_CARD, FROM_CARD = 1, 2
# Bytes that one turn copies at least, and of the file that is loaded.
TURN = 256 << 20
FILE = 4 << 30
# MiB of tensors.
SIZES = 16, 64, 256, 1024
# Seconds in which PyTorch's threads spin on all CPUs after an operation that they have shared.
SPINNING = 0.05


def cpu_time():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def runtime():
    """CUDA's runtime as PyTorch has loaded it, looked up past our library."""
    with open("/proc/self/maps") as maps:
        return ctypes.CDLL(re.search(r"/\S*/libcudart\.so\S*", maps.read())[0])


def copies(sizes):
    import torch

    torch.cuda.init()
    arms = {"own": runtime(), "adma": ctypes.CDLL(None)}
    for arm in arms.values():
        arm.cudaMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    print("  size MiB  way    own GB/s  adma GB/s  (low-high)      x  CPU s/GB  adma's")
    for mib in sizes:
        size = mib << 20
        host = torch.empty(size, dtype=torch.uint8).random_(0, 255)
        card = torch.empty(size, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        count = max(1, TURN // size)
        for way, dst, src, kind in (("to", card, host, TO_CARD), ("from", host, card, FROM_CARD)):
            speeds, used = ({arm: [] for arm in arms} for _ in range(2))
            for turn in range(TURNS + 1):
                for name, arm in arms.items():
                    cpu, begun = cpu_time(), time.perf_counter()
                    for _ in range(count):
                        if error := arm.cudaMemcpy(dst.data_ptr(), src.data_ptr(), size, kind):
                            sys.exit(f"cudaMemcpy: error {error}")
                    took = time.perf_counter() - begun
                    if turn:
                        speeds[name].append(size * count / took / 1e9)
                        used[name].append((cpu_time() - cpu) / (size * count) * 1e9)
            own, ours = (statistics.median(speeds[arm]) for arm in arms)
            low, *_, high = sorted(speeds["adma"])[1:-1]
            burnt = [statistics.median(used[arm]) for arm in arms]
            print(f"  {mib:8}  {way:4}  {own:9.1f}  {ours:9.1f}  {f'({low:.1f}-{high:.1f})':13}"
                  f"{ours / own:5.2f}  {burnt[0]:8.3f}  {burnt[1]:6.3f}", flush=True)


def jobs_of_child(folder):
    """Returns what the child can run, by name."""
    import torch
    from safetensors.torch import load_file, save_file

    whole, file = torch.rand(256 << 20), os.path.join(folder, "weights")
    if not os.path.exists(file + ".safetensors"):
        weights = {str(i): torch.rand(64 << 20) for i in range(FILE >> 28)}
        torch.save(weights, file + ".pt")
        save_file(weights, file + ".new")
        os.rename(file + ".new", file + ".safetensors")
    layers = [torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096)]
    net = torch.nn.Sequential(*layers).cuda().to(torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    batches = [torch.rand(2048, 4096) for _ in range(8)]
    pinned = [batch.pin_memory() for batch in batches]

    def train(batches):
        for batch in batches * 4:
            inputs = batch.to("cuda", non_blocking=True).to(torch.bfloat16)
            loss = net(inputs).float().pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def fresh(mib, pause):
        def make():
            tensor = whole[: mib << 18].clone()
            time.sleep(pause)
            return tensor, lambda tensor: tensor.to("cuda")

        return make

    def back(mib):
        return lambda: (whole[: mib << 18].cuda(), lambda tensor: tensor.cpu())

    def only(work):
        return lambda: (None, lambda _: work())

    return torch.cuda.synchronize, {
        **{f"tensor.to('cuda'), {mib} MiB": fresh(mib, SPINNING) for mib in SIZES},
        **{f"the same after clone(), {mib} MiB": fresh(mib, 0) for mib in SIZES},
        **{f"tensor.cpu(), {mib} MiB": back(mib) for mib in SIZES},
        "torch.load to the card, 4 GiB": only(lambda: torch.load(file + ".pt", map_location="cuda")),
        "the same with mmap=True": only(lambda: torch.load(file + ".pt", map_location="cuda", mmap=True)),
        "safetensors.load_file to the card": only(lambda: load_file(file + ".safetensors", device="cuda")),
        "training, batches of 32 MiB": only(lambda: train(batches)),
        "training, pinned batches": only(lambda: train(pinned)),
    }


def child(folder):
    """Runs jobs by the names that come in: how long each took, and the CPU time."""
    wait, jobs = jobs_of_child(folder)
    print("\n".join(jobs), flush=True)
    print(flush=True)
    for name in sys.stdin:
        given, work = jobs[name.rstrip("\n")]()
        wait()
        cpu, begun = cpu_time(), time.perf_counter()
        result = work(given)
        wait()
        print(time.perf_counter() - begun, cpu_time() - cpu, flush=True)
        del given, result


def jobs(library):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        children = []
        for environment in plain, {**plain, "LD_PRELOAD": library}:
            command = [sys.executable, __file__, "--child", folder]
            pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            children.append(subprocess.Popen(command, env=environment, **pipes))
            names = list(iter(children[-1].stdout.readline, "\n"))
        print(f"  {'job':36}  own ms  adma ms  (low-high)           x  CPU s  adma's")
        for name in names:
            taken, used = [[], []], [[], []]
            for turn in range(TURNS + 1):
                for arm, process in enumerate(children):
                    process.stdin.write(name)
                    process.stdin.flush()
                    seconds, cpu = map(float, process.stdout.readline().split())
                    if turn:
                        taken[arm].append(seconds * 1e3)
                        used[arm].append(cpu)
            own, ours = map(statistics.median, taken)
            low, *_, high = sorted(taken[1])[1:-1]
            burnt = [statistics.median(arm) for arm in used]
            print(f"  {name.strip():36}  {own:6.1f}  {ours:7.1f}  {f'({low:.1f}-{high:.1f})':16}"
                  f"{own / ours:6.2f}  {burnt[0]:5.2f}  {burnt[1]:6.2f}", flush=True)
        for process in children:
            process.stdin.close()
            process.wait()


def main(library, words):
    if words[:1] == ["--child"]:
        child(words[1])
    elif words[:1] == ["copies"]:
        copies([int(size) for size in words[1:]] or [4, 8, 16, 32, 64, 256, 1024])
    elif words == ["jobs"]:
        jobs(library)
    elif not words:
        for part in "copies", "jobs":
            preload = {**os.environ, "LD_PRELOAD": library}
            subprocess.run([sys.executable, __file__, part], env=preload, check=True)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(os.environ.get("LD_PRELOAD", ""), sys.argv[1:])

"""Compares every copy of unmodified programs with what it should be; exit status 1 on a wrong byte.

usage: gpu_verified.py SECONDS

numpy always; PyTorch where it is installed and sees a card: the context is then PyTorch's and ours.
PyTorch copies by loops of its own and by the driver; numpy on the memory of tensors uses memcpy. The
library's report (ADMA_STATS=text) tells what the card carried.
"""
import sys, time
import numpy as np

try:
    import torch
    TORCH = torch.cuda.is_available()
except ImportError:
    TORCH = False
LEN, HALF = 8 << 20, 4 << 20  # of doubles: 64 MiB
a, b = np.random.default_rng(1).random(LEN), np.zeros(LEN)
if TORCH:
    t, u, pinned = torch.rand(2 * LEN), torch.zeros(2 * LEN), torch.empty(2 * LEN, pin_memory=True)
    array = np.zeros(2 * LEN, dtype=np.float32)


def numpy_copies(number):
    a[number % LEN] = number
    np.copyto(b, a)
    yield np.array_equal(a, b)
    fresh = a.copy()  # memory that comes and goes, at one address every time
    yield np.array_equal(a, fresh)
    fresh[:] = number
    np.copyto(b, fresh)
    yield np.array_equal(b, fresh)
    joined = np.concatenate([a[:HALF], b[:HALF]])
    yield np.array_equal(joined[:HALF], a[:HALF]) and np.array_equal(joined[HALF:], b[:HALF])
    yield np.array_equal(np.roll(a, 1000)[1000:], a[:-1000])


def torch_copies(number):
    t[number % LEN] = number
    np.copyto(u.numpy(), t.numpy())
    yield torch.equal(t, u)
    np.copyto(array, u.numpy())
    yield torch.equal(torch.from_numpy(array), t)
    u.zero_()
    u.copy_(t)  # PyTorch's own loop, on memory registered with the card
    yield torch.equal(t, u)
    doubled = t.cuda(non_blocking=True) * 2
    np.copyto(u.numpy(), t.numpy())  # beside the kernel
    yield torch.equal(doubled.cpu(), t.clone() * 2)
    pinned.copy_(t)
    yield torch.equal(pinned.cuda().cpu(), t)
    np.copyto(array, doubled.cpu().numpy())  # what came from the card goes on by memcpy
    yield np.array_equal(array, (u * 2).numpy())


wrong = 0
for copies in [numpy_copies, torch_copies][: 1 + TORCH]:
    end, rounds, failed = time.monotonic() + float(sys.argv[1]), 0, 0
    while time.monotonic() < end:
        failed += sum(not right for right in copies(rounds))
        rounds += 1
    print(f"{copies.__name__}: {rounds} rounds, {failed} copies wrong")
    wrong += failed
sys.exit(wrong != 0)

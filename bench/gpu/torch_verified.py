"""CPU and CUDA tensors and numpy arrays in one program, each copy compared; the context is PyTorch's
and ours.

PyTorch copies between CPU tensors with loops of its own (copy_, clone, cat), and between CPU and card
by the driver: none of these is a memcpy. What is one: numpy on the memory of tensors, and bytes. The
report tells whether the card has carried those.
"""
import sys
import time
try:
    import numpy as np
    import torch
except ImportError:
    print("  skipped: no PyTorch here")
    sys.exit(0)
if not torch.cuda.is_available():
    print("  skipped: PyTorch sees no card")
    sys.exit(0)
LEN = 16 << 20  # of floats: 64 MiB
wrong = rounds = 0
a, b = torch.rand(LEN), torch.zeros(LEN)
pinned = torch.empty(LEN, pin_memory=True)
array = np.zeros(LEN, dtype=np.float32)
begun = time.monotonic()
while time.monotonic() - begun < float(sys.argv[1]):
    a[rounds % LEN] = rounds
    # By memcpy, on the memory of tensors: the card's.
    np.copyto(b.numpy(), a.numpy())
    wrong += not torch.equal(a, b)
    np.copyto(array, b.numpy())
    wrong += not torch.equal(torch.from_numpy(array), a)
    # PyTorch's own ways, while the same memory is registered with the card.
    b.zero_()
    b.copy_(a)
    wrong += not torch.equal(a, b)
    on_card = a.cuda(non_blocking=True)
    doubled = on_card * 2
    np.copyto(b.numpy(), a.numpy())  # beside the kernel
    c = a.clone()
    wrong += not torch.equal(doubled.cpu(), c * 2)
    pinned.copy_(a)
    wrong += not torch.equal(pinned.cuda().cpu(), a)
    # What came from the card goes on by memcpy.
    np.copyto(array, doubled.cpu().numpy())
    wrong += not np.array_equal(array, (b * 2).numpy())
    rounds += 1
torch.cuda.synchronize()
print(f"  torch {torch.__version__}, numpy {np.__version__}: {rounds} rounds of 9 copies, {wrong} wrong")
sys.exit(wrong != 0)

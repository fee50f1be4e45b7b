"""CPU and CUDA tensors in one program, each copy compared; the context is PyTorch's and ours."""
import sys
import time
try:
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
begun = time.monotonic()
while time.monotonic() - begun < float(sys.argv[1]):
    a[rounds % LEN] = rounds
    b.copy_(a)
    wrong += not torch.equal(a, b)
    on_card = a.cuda(non_blocking=True)
    doubled = on_card * 2
    c = a.clone()
    wrong += not torch.equal(doubled.cpu(), c * 2)
    pinned.copy_(a)
    wrong += not torch.equal(pinned.cuda().cpu(), a)
    rounds += 1
torch.cuda.synchronize()
print(f"  torch {torch.__version__}: {rounds} rounds, {wrong} wrong")
sys.exit(wrong != 0)

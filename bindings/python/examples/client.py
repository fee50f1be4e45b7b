"""The client of server.py, or of that in C or Rust: sends messages of several sizes, and looks at the
answers.

python3 client.py [PATH [end]]
"""
import sys

import adma

path = sys.argv[1] if len(sys.argv) > 1 else "/tmp/adma-example"
with adma.connect(path, timeout=60) as connection:
    peer = connection.peer
    print(f"connected to process {peer.pid}, {'proven' if peer.proven else 'streamed'}")
    for size in (1, 100, 5000, 100_000, 8 << 20):
        # Large messages between such buffers are copied without the kernel.
        sent, answer = adma.alloc(size), adma.alloc(size)
        sent[:] = (bytes(range(256)) * (size // 256 + 1))[:size]
        connection.write(sent)
        count = connection.read_into(answer)
        if count != size or answer != sent[::-1]:
            sys.exit(f"{size} bytes: the answer is wrong")
        print(f"{size} bytes and back")
    if sys.argv[2:] == ["end"]:
        connection.write(b"")  # an empty message is a message

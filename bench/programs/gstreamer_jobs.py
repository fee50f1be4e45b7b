"""GStreamer: one pipeline hands buffers of 16 MiB to another by shmsink and shmsrc."""

import subprocess

from work import CHECK, MIB, check, clock, ended, listening, main, ready, short_folder, start


def shm(count):
    with short_folder() as folder:
        path, out = f"{folder}/socket", f"{folder}/out"
        fill = "pattern" if CHECK else "zero"
        sink = f"filesink location={out}" if CHECK else "fakesink sync=false"
        sender = start(
            f"gst-launch-1.0 -q fakesrc num-buffers={count} sizetype=fixed sizemax={16 * MIB} "
            f"filltype={fill} ! shmsink socket-path={path} shm-size={256 * MIB} sync=false".split(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        ready(lambda: listening(path), sender)
        with clock():
            source = f"shmsrc socket-path={path} num-buffers={count}"
            receiver = start(f"gst-launch-1.0 -q {source} ! {sink}".split())
            check(ended(receiver) == 0, "the receiver failed")
        # The sender ends when all it sent was taken; shmsink may complain of its own end.
        check(ended(sender) in (0, 1), "the sender failed")
        if CHECK:
            with open(out, "rb") as file:
                whole = bytes(range(256)) * (16 * MIB // 256)
                check(all(file.read(16 * MIB) == whole for _ in range(count)) and not file.read(1))


if __name__ == "__main__":
    main({"shm": shm})

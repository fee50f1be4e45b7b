"""ImageMagick: copies of a picture of 12 megapixels, each changed a little, one below the other."""

import os
import subprocess

from work import CHECK, FOLDER, check, clock, main, start

CONVERT = "/usr/bin/convert"
WIDTH, HEIGHT = 4000, 3000


def run(*words):
    program = start([CONVERT, *words])
    check(program.wait() == 0, f"convert: exit status {program.returncode}")


def picture():
    """Pixels as they lie in memory (.mpc), made once."""
    path = os.path.join(FOLDER, "picture.mpc")
    if not os.path.exists(path):
        size = f"{WIDTH}x{HEIGHT}"
        subprocess.run([CONVERT, "-size", size, "gradient:red-blue", path], check=True)
    return path


def clones(count):
    source = picture()
    out = os.path.join(FOLDER, "pictures.mpc") if CHECK else "null:"
    edits = []
    for n in range(4):
        edits += ["(", "-clone", "0", "-fill", "white", "-draw", f"rectangle {n},0 {n + 9},9", ")"]
    with clock():
        for _ in range(count):
            run(source, *edits, "-append", out)
    if CHECK:
        # Without its changes the last copy is the picture.
        last = os.path.join(FOLDER, "last.rgb")
        run(out, "-crop", f"{WIDTH}x{HEIGHT - 10}+0+{4 * HEIGHT + 10}", "-depth", "16", last)
        first = os.path.join(FOLDER, "first.rgb")
        run(source, "-crop", f"{WIDTH}x{HEIGHT - 10}+0+10", "-depth", "16", first)
        with open(first, "rb") as one, open(last, "rb") as other:
            check(one.read() == other.read())
        for name in "first.rgb", "last.rgb", "pictures.mpc", "pictures.cache":
            os.remove(os.path.join(FOLDER, name))


if __name__ == "__main__":
    main({"clones": clones})

"""Ray: arrays are put into its object store, by six threads that Ray has for large ones."""

import os

import numpy as np
from work import CHECK, MIB, check, clock, main, short_folder, skip

os.environ["RAY_AUTH_MODE"] = "disabled"  # otherwise it leaves a file in the home folder
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray  # noqa: E402 (reads these variables)


def put(count):
    """Each array is given back before the next one is put."""
    src = np.arange(256 * MIB // 8, dtype=np.float64)
    with short_folder() as folder:
        try:
            ray.init(num_cpus=1, include_dashboard=False, object_store_memory=1 << 30, log_to_driver=False,
                     _temp_dir=folder)
        except Exception as error:  # its daemons did not start in time
            skip(f"Ray does not start here: {error}")
        with clock():
            for _ in range(count):
                kept = None  # gives the one before back
                kept = ray.put(src)
        if CHECK:
            check(np.array_equal(ray.get(kept), src))
        ray.shutdown()


if __name__ == "__main__":
    main({"put": put})

"""What goes wrong when a run is made fast, each broken on purpose, seen, and cured, with a number for both.

Every pitfall is a module with `ABOUT`, `break_it()`, `detect(broken)` and `fix_it()`: a small real run that shows the
symptom, what lfhelpers says of it (and that it says nothing of the cured one), and the same run cured. All run on a CPU
in a second or so; damage that only a GPU shows is shown here by its cause. Importing this package loads no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

from lfhelpers.errors import LfError, nearest

GROUPS = {
    "memory": ("loss_list", "kept_traceback", "reference_cycle", "recompiles"),
    "randomness": ("numpy_fork", "worker_seed", "hash_seed", "resume_repeats", "worker_order"),
    "several hosts": ("late_rank", "busy_host", "uneven_shards"),
    "not a number": ("clip_before_unscale", "unscale_twice", "scaler_collapse", "schedule_on_skips", "black_image",
                     "masked_row", "bf16_weights", "clip_nan", "backward_nan"),
    "slow without a word": ("no_sync_backward", "first_bucket", "tiny_buckets", "find_unused", "item_each_step",
                            "new_shapes", "profiler_on", "thread_crowd", "small_shm"),
    "wrong without a word": ("mean_of_means", "dropped_tail", "prefixed_keys", "augmented_evaluation",
                             "static_no_sync"),
}
NAMES = tuple(name for names in GROUPS.values() for name in names)


def pitfall(name: str) -> Any:
    """The module of a pitfall. Raises LfError for a name that is none."""
    if name not in NAMES:
        raise LfError(f"no pitfall '{name}'; {nearest(name, NAMES)}")
    return importlib.import_module(f"lfhelpers.pitfalls.{name}")


def show(name: str) -> dict[str, Any]:
    """Break it, see it, fix it: a row with symptom, damage, what is said, cause, cure, and the figure when cured."""
    module = pitfall(name)
    broken, said, fixed = module.break_it(), module.detect(), module.fix_it()
    return {"pitfall": name.replace("_", " "), "symptom": module.ABOUT.symptom, "measured": module.ABOUT.measured,
            "broken": broken, "cured": fixed, "cause": module.ABOUT.cause, "cure": module.ABOUT.cure, "said": said}

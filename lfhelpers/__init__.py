"""Cut a deep-learning training run to half its time, and prove that quality did not change.

    import lfhelpers as lf
    run = lf.launch(lf.recipe("competent", "workload.size=tiny"), nproc=2)
    print(lf.diagnose(run).table())

Importing the package loads neither torch nor DALI nor matplotlib.
"""

# These names hide the modules of the same name on purpose: `lf.launch(...)` is the verb. Inside the package everything
# is imported as `from lfhelpers.launch import ...`, which reaches the module.
from lfhelpers.bench import ladder
from lfhelpers.bench.memory_plan import plan
from lfhelpers.diagnose import compare, diagnose
from lfhelpers.diagnose.verbs import ablate, ceilings, score, watch
from lfhelpers.errors import LfError
from lfhelpers.launch import launch, start, status_line
from lfhelpers.notebook.run_report import report
from lfhelpers.pitfalls.order import order_fingerprint
from lfhelpers.recipe import Recipe, diff, recipe
from lfhelpers.runs import Run, find, load, recorded
from lfhelpers.tune import tune

__all__ = ["LfError", "Recipe", "Run", "ablate", "ceilings", "compare", "diagnose", "diff", "find", "ladder", "launch",
           "load", "order_fingerprint", "plan", "recipe", "recorded", "report", "score", "start", "status_line", "tune",
           "watch"]

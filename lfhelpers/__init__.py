"""Cut a deep-learning training run to half its time, and prove that quality did not change.

    import lfhelpers as lf
    run = lf.launch(lf.recipe("competent", "workload.size=tiny"), nproc=2)
    print(lf.diagnose(run).table())

Importing the package loads neither torch nor DALI nor matplotlib.
"""

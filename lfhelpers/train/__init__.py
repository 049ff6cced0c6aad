"""Training: the loop, the step, precision, optimizer, checkpoints; each rank is `python -m lfhelpers.train`."""

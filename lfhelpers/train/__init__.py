"""Training: the loop, the step, precision, optimizer, checkpoints; torchrun starts `python -m lfhelpers.train`."""

"""Training: the loop, the step, precision, optimizer and checkpoints; `python -m lfhelpers.train` is what torchrun starts."""

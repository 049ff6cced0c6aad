"""Workloads: what is trained. `vla` is built in; a class of your own works as well."""

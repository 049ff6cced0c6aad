"""Benchmarks: each measures one claim of the playbook and leaves a record (measure.record) that a later run is held to.

Tests assert values; speed is measured here, because it depends on the machine and on who else uses it.
"""

"""Levers: one optimisation each, with what it changes, when it can't be pulled, and what it does to results."""

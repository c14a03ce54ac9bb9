"""Experiments: what to run, where it is kept, and how many at once."""

"""Seeded fuzzers, kills and loads: `python -m tests.campaign --cases 1000 --seed 0`."""

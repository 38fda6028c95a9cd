"""Benchmarks, and checks that take minutes; for developers of olla_xla, run from a checkout."""

from benchmarks import refused

refused.watch()

"""Benchmarks and tests at scale that are more than one file each."""

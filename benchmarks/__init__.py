"""Benchmarks, and checks that take minutes: for who changes olla_xla, from a checkout."""

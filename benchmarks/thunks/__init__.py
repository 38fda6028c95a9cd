"""Tests the referee of GPU executables on those of real steps, and on mutants of them."""

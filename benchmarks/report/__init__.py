"""Tables of what the benchmarks found."""

"""Tables of the results of benchmarks."""

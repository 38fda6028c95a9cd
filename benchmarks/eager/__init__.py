"""What only the benchmarks need of baseline planners: see `olla_xla.tools.eager`."""

"""The papers' figures, drawn from sweeps and benchmarks."""

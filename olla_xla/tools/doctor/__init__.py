"""What `olla_xla doctor` finds out of a machine: what works, and how models of README do there."""

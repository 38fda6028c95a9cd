"""What `olla_xla doctor` finds out about a machine: what works, and how models of the zoo run."""

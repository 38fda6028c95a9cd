"""What `olla_xla doctor` finds out about a machine: what works, and how README's models run."""

"""Train steps partitioned over eight devices, each in a different way."""

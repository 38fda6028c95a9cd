"""Train steps that are partitioned over eight devices, each in another way."""

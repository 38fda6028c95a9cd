"""XLA's buffer assignment, simulated for any order."""

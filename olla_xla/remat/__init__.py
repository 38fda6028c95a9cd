"""Recomputation on the compiled graph: what to compute again, when, and at what price."""

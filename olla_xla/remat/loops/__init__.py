"""Recomputation across loops: what one loop stacks for another, and need not."""

"""Recomputation across loops: what one loop keeps for another, and need not."""

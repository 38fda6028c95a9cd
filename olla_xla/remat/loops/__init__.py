"""Recomputation across loops: scan residuals that one loop keeps for another, and need not."""

"""Checks that a process that plans repeatedly does not grow, in memory or in seconds a call."""

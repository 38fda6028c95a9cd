"""Runs of a step, planned and unplanned: outputs, memory, time."""

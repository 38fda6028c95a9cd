"""Recorded loops, and what reads and writes such files."""

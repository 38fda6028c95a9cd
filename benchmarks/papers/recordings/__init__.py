"""Recorded loops, and code that reads and writes their files."""

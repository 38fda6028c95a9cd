"""Audits of executables that were not planned, and of faults put into them."""

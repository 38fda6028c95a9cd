"""Checks of executables that XLA made by itself: `olla_xla.audit`, and all of a program's."""

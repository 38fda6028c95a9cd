"""Solvers, one file each; nothing but `olla_xla.solvers.solve` imports one."""

"""Solvers, one file each; nothing outside imports one."""

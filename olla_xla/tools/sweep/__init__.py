"""Sweeps: a grid of cells, each run in a fresh process, and rows that survive a kill.

`grid` says what to run, `cell` runs one of them, `local` and `cluster` run many, `journal` keeps
the rows.
"""

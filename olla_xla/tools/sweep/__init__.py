"""Sweeps: a grid of cells, each run in a fresh process, and rows that survive a kill.

`grid` says what to run and keeps the rows, `cell` runs one of them, `process` many.
"""

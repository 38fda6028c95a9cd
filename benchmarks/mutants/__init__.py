"""Seeded faults in planned modules: does the referee catch each that changes a result?

A mutant is a planned module, as it is handed back to XLA, with one fault in it (`kinds`), or an
executable with two of its buffers moved onto each other (`overlap`). It is compiled by XLA, judged
by the referee as any planned executable is, and run: its outputs are compared bit for bit with
those of XLA's own executable (`subject`). Mutants can end their process or never end, so they run
in one that is watched (`worker`, `driver`).
"""

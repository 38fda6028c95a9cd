"""Profile and replay: memory planned from recorded iterations (Sekiyama et al. 2018, section 4).

`profile` records one iteration and serves later ones from its offsets; `replay` records a profile
for each kind of iteration by itself; `record_arrays` records the arrays of a NumPy program.
"""

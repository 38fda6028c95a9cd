"""Random programs, planned and compared with `jax.jit`, bit for bit.

`spec` says what a program is, `text` writes and reads it, `training.build` makes a step of it,
`strategies` draws programs, `check` plans, runs and compares them, `search` does so for a share of
many and shrinks what fails, `processes` for any number, `tally` counts.
"""

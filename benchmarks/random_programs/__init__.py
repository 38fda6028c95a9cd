"""Random programs, planned and compared with `jax.jit`, bit for bit.

`spec` defines programs, `text` writes and reads them, `training.build` makes a step of one,
`strategies` draws random ones, `check` plans, runs and compares one, `search` does so for a share
of many and shrinks failures, `processes` runs any number of shares, and
`benchmarks.report.programs` counts outcomes.
"""

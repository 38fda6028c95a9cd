"""Baseline planners on the unfused graph: what frameworks do without a compiler's help.

`graph` turns lowered StableHLO into a program of tensors; `eager` runs it through a simulated
caching allocator (`allocator`), `static` assigns its tensors to shared storages as MXNet does, and
`check` is the referee of such assignments.
"""

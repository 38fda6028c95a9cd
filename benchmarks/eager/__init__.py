"""Baseline planners on the unfused graph (`olla_xla.tools.eager`).

`static` assigns its tensors to shared storages as MXNet does, `conflicts` counts the dependencies
that this adds, `storages` is the referee of such assignments, `estimate` puts all side by side.
"""

"""Unfused graphs, as in a framework that runs one operator at a time.

`graph` reads one from StableHLO, `requests` and `allocator` run it eagerly, `unfused` plans it,
also for a sweep. The rest are other planners: `static` assigns its tensors to shared storages as
MXNet does, `conflicts` counts the dependencies that this adds, `storages` is the referee of such
assignments, `estimate` puts all side by side.
"""

"""A step's unfused graph as a framework without a compiler's help runs it, and planned by us.

`graph` turns lowered StableHLO into a program of tensors; `eager` runs it through a simulated
caching allocator (`allocator`), `allocator_time` measures what its requests take, `unfused` orders
and places it.
"""

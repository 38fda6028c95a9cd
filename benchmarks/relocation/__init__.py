"""Experimental: buffers placed by us, not by XLA, in a CPU executable.

XLA's rule for placing buffers gives a donated argument's memory to one temporary at a time. Here
the slices of the serialized executable (`executable`) are rewritten (`slices`), judged by a referee
of their own (`referee`), and the executable is loaded again (`compiled.compile_with_offsets`). The
format of the executable is internal to XLA and may change. This is not installed: it runs from a
checkout.
"""

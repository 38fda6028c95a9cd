"""Orders that are changed for the sake of places, for programs that allocate as planned.

XLA places buffers by a rule of its own, so that no plan of a step needs this; frameworks that run
operator by operator, and the OLLA paper's own comparison, do.
"""

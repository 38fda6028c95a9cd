"""Recomputation on the compiled graph: what to compute again, when, and at what price."""

from hlo.late import late_modules

__getattr__ = late_modules(__name__, "rewritten")

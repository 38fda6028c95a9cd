"""Checks of executables that XLA made by itself: `olla_xla.audit`, and all of a program's."""

from hlo.late import late_modules

__getattr__ = late_modules(__name__, "audit reduce report")

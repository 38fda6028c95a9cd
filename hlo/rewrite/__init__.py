"""Changes of a serialized HLO module: schedules, aliases, clones, copies, calls."""

from hlo.late import late_modules

__getattr__ = late_modules(__name__, "guards")

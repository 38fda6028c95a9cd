"""Changes of serialized HLO modules: schedules, buffer aliases, clones, copies and loops."""

from hlo.late import late_modules

__getattr__ = late_modules(__name__, "guards")

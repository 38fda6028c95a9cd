"""The passes of `planner.pipeline`: each takes a ModuleState and returns the next one."""

from hlo.late import late_modules

# A fifth of the planner's code, with what they import.
__getattr__ = late_modules(__name__, "relax_overlap rewriting")

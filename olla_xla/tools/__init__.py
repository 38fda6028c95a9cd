"""What user commands need."""

from hlo.late import late_modules

# They import JAX, which a script that is run is to do.
__getattr__ = late_modules(__name__, "dumped script_jit")

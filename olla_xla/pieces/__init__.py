"""Fission: an axis cut into pieces, and the function run one piece at a time."""

from hlo.late import late_modules

# They import jax.extend, which adds to JAX's configuration.
__getattr__ = late_modules(__name__, "in_pieces on_host transform")

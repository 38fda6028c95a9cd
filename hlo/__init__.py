"""XLA's formats: HLO modules, values and aliases, buffer assignments. Imports nothing of olla_xla.

This is the one package that touches XLA's protos.
"""

from hlo.late import late_modules

__getattr__ = late_modules(
    __name__,
    "buffer_assignment constants convolution invariant_loads tpu_executable",
)

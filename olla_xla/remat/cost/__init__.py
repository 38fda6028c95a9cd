"""What running an operator costs: bytes moved, operations, predicted seconds."""

from hlo.late import late_modules

__getattr__ = late_modules(__name__, "cpu_benchmarks on_chip")

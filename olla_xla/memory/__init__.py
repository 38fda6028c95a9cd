"""What an order costs: lifetimes, bounds on them, XLA's assignment of buffers."""

from hlo.late import late_modules

__getattr__ = late_modules(__name__, "snappy")

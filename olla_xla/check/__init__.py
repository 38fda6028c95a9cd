"""The referees: each checks from scratch, and shares no code with what it judges.

- `graph`: orders and offsets of a tensor graph (`check_schedule`, `check_placement`).
- `blocks`: packings of blocks.
- `executable`: rewritten modules, and the schedule that XLA's executable runs.
"""

from hlo.late import late_modules
from olla_xla.check.graph import check_placement, check_schedule, lifetime_peak

__getattr__ = late_modules(__name__, "executable")

__all__ = ["check_placement", "check_schedule", "lifetime_peak"]

"""Options of planning, which the caller sets, and the parsers of their values."""

import dataclasses
import math
import re
from typing import Any, Self

from olla_xla.errors import InputError, LimitError

NOTHING = 256 * 2**10
"""Bytes below which a gain is ignored by default."""

KNEE = "knee"
"""The overhead beyond which more time saves little."""

METHODS = ("search", "ilp")
"""What looks for orders."""

PLACEMENTS = ("xla", "own")
"""Who chooses the addresses of buffers."""

SOLVERS = ("highs", "cpsat", "gurobi")
"""What may solve the integer programs; names of `olla_xla.solvers`."""

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}B": 1000 ** (k + 1) for k, p in enumerate("KMGT")}
_UNITS |= {f"{p}{iB}": 1024 ** (k + 1) for k, p in enumerate("KMGT") for iB in ("", "iB")}
_FORM = 'a number of bytes or a string such as "10GiB", "512MiB" or "1.5GB"'
_PART = "a fraction of the step's time, such as 0.05 for 5%, or 'knee'"


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """All options of one planning run; they are checked at construction.

    Numbers may be scalars of numpy or JAX; they are kept as Python's. Raises LimitError if a number
    is out of range, and InputError if a value has the wrong type, is none to choose from, or needs
    or excludes another option.

    Attributes:
      time_limit: seconds that planning may add; the clock can only end it earlier. None: in
        proportion to what XLA takes to compile and to what can be gained (`planner.effort`).
      step_limit: search steps, or None for no limit. With it alone no clock ends planning, and
        equal seeds give equal plans.
      seed: of the search's random numbers.
      tolerance: the search ends at (1 + tolerance) times the lower bound.
      in_place: fusions may be bound to write over a dying operand (`planner.in_place`), where XLA's
        rules allow it and its heap would not do it by itself.
      memory_budget: the most that the step may take on the device, by XLA's accounting (arguments +
        outputs - aliases + temp), in bytes or as in "10GiB". As much as this needs is recomputed
        instead of kept, at the least predicted time. None: no budget.
      max_overhead: the most predicted time that may be added by recomputation, and by transfers
        that overlap with less computation, as a fraction of the step's own: 0.05 is 5%. None: no
        limit with a budget, 0 without one. Above 0 and without a budget, the least memory within
        it is looked for. "knee": of the totals that are met with up to 50 %, that of the last
        point whose gain a second is above a tenth of the first's.
      loops: scan residuals, such as a scan over layers keeps for its gradient, may be recomputed
        instead (`remat.loops`): by default where that takes no more predicted time, with a budget
        or an overhead as far as these need it.
      collectives: for `loops`, collectives may run again too, such as those that exchange
        activations in tensor parallelism; their predicted time counts like any other.
      method: "search", or "ilp": orders by the OLLA paper's integer program, started from the
        search's (`solvers.programs`); it takes seconds to hours, and `Plan.proofs` says what it
        proved. What is recomputed is chosen for that order, and then the order again.
      backend: what solves the program: "highs", "cpsat" or "gurobi".
      gap: the program may end at a peak so much above its bound: 0.005 is 0.5 %.
      placement: "xla", or "own": on a CPU, buffers lie where we place them, not where XLA would
        (`compile.own_places`), and orders compete on their lifetime peak. Where that is not
        possible, XLA's places are kept, and `Plan.placement_note` says why.
      early_updates: the program has the paper's control edges (4.3), which make weight updates run
        early. It is smaller, may exclude the best order, and proves no more than the minimum cuts.
    """

    time_limit: float | None = None
    step_limit: int | None = None
    seed: int = 0
    tolerance: float = 0.001
    in_place: bool = True
    memory_budget: int | str | None = None
    max_overhead: float | str | None = None
    loops: bool = True
    collectives: bool = False
    method: str = "search"
    backend: str = "highs"
    gap: float = 0.0
    early_updates: bool = False
    placement: str = "xla"

    @property
    def budget_bytes(self) -> int | None:
        """The memory budget in bytes, or None."""
        return None if self.memory_budget is None else parse_bytes(self.memory_budget)

    @property
    def recomputes(self) -> bool:
        """Whether values may be recomputed: a budget or overhead is given, and not overhead 0."""
        return self.max_overhead != 0 and (
            self.memory_budget is not None or self.max_overhead is not None
        )

    @property
    def in_proportion(self) -> bool:
        """Whether planning time follows XLA's compile time: no limit, budget or "ilp" is set."""
        limits = (self.time_limit, self.step_limit, self.memory_budget)
        return limits == (None,) * len(limits) and self.method == "search"

    @property
    def is_default(self) -> bool:
        """Whether no limit, budget, overhead or "ilp" is set, so that a search may end early."""
        return self.in_proportion and not self.recomputes

    def in_need(self, xla_bytes: int) -> Self:
        """These options, or, where XLA's order meets the memory budget with a total of `xla_bytes`,
        the same without it and without recomputation: planning is then as short as by default.
        """
        if self.budget_bytes is None or xla_bytes > self.budget_bytes:
            return self
        overhead = None if self.max_overhead is None else 0
        return dataclasses.replace(self, memory_budget=None, max_overhead=overhead)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        limit = self.time_limit
        if isinstance(limit, bool) or not isinstance(limit, int | float | None):
            raise InputError(f"time_limit={limit!r} is not a number of seconds")
        for name in ("in_place", "loops", "collectives", "early_updates"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name}={getattr(self, name)!r} must be True or False")
        for name in ("tolerance", "gap"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"{name}={value!r} is not a number")
            if not 0 <= value < 1:
                raise LimitError(f"{name}={value} must be at least 0 and below 1")
        if limit is not None and (math.isnan(limit) or limit <= 0):
            raise LimitError(f"time_limit={limit} must be a positive number of seconds")
        for name in ("step_limit", "seed"):
            value = getattr(self, name)
            if value is None and name == "step_limit":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"{name}={value!r} must be an integer")
        if self.step_limit is not None and self.step_limit <= 0:
            raise LimitError(
                f"step_limit={self.step_limit} must be a positive number of search steps"
            )
        if self.memory_budget is not None:
            parse_positive(self.memory_budget, "memory_budget")
        if self.collectives and not self.loops:
            raise InputError("collectives=True needs loops=True; leave out one of the two options")
        self._check_overhead()
        self._check_method()

    def _check_method(self) -> None:
        for name, known in (
            ("method", METHODS), ("backend", SOLVERS), ("placement", PLACEMENTS),
        ):  # fmt: skip
            value = getattr(self, name)
            if value not in known:
                raise InputError(f"{name}={value!r}: choose one of {', '.join(known)}")
        for name in ("early_updates", "gap"):
            value = getattr(self, name)
            if value and self.method != "ilp":
                raise InputError(f"{name}={value} needs method='ilp'; give it, or leave {name} out")

    def _check_overhead(self) -> None:
        value = self.max_overhead
        if value is None or (value == KNEE and self.memory_budget is None):
            return
        if value == KNEE:
            raise InputError('memory_budget already sets the limit; leave out max_overhead="knee"')
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"max_overhead={value!r} is not a number; give {_PART}")
        if not 0 <= value < math.inf:
            raise LimitError(f"max_overhead={value} must be at least 0: {_PART}")


def _plain(value: Any) -> Any:
    """Converts a scalar of NumPy or JAX to Python's; returns anything else as it is."""
    is_scalar = hasattr(value, "item") and getattr(value, "shape", None) == ()
    return value.item() if is_scalar else value


def parse_bytes(text: int | str, name: str = "memory_budget") -> int:
    """Parses a number of bytes: KB to TB are powers of 1000, K to T and KiB to TiB of 1024.

    Raises InputError, which calls it `name`, if it is neither an integer nor such text.

    Examples:
      >>> parse_bytes("1.5GB")
      1500000000
      >>> parse_bytes("512MiB")
      536870912
    """
    text = _plain(text)
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if isinstance(text, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
        units = {name.lower(): size for name, size in _UNITS.items()}
        if match and match[2].lower() in units:
            return int(float(match[1]) * units[match[2].lower()])
    raise InputError(f"{name}={text!r} is not {_FORM}")


def parse_positive(text: int | str, name: str) -> int:
    """Parses a number of bytes as `parse_bytes` does. Raises LimitError if it is not above 0."""
    size = parse_bytes(text, name)
    if size <= 0:
        raise LimitError(f"{name}={text!r} must be positive: {_FORM}")
    return size


def parse_overhead(value: float | str, name: str = "max_overhead") -> float:
    """Parses a fraction of a step's time, given as a number or a percentage: 0.05, or "5%".

    Raises InputError, which calls it `name`, if it is neither. A number above 2 is likely meant as
    per cent, and is refused; "500%" is not.

    Examples:
      >>> parse_overhead("5%")
      0.05
    """
    value = _plain(value)
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise InputError(f"{name}={value!r} is not a number; give {_PART}") from None
    if text.endswith("%"):
        return number / 100
    if 2 < number < math.inf:
        raise InputError(
            f'{name}={text} would allow the step {100 * number:g} % more time; write "{text}%" '
            f'for {text} %, or "{100 * number:g}%" if that is meant'
        )
    return number

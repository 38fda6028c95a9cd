"""What a solver proved about the order of one computation."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Proof:
    """One integer program as solved (`method="ilp"`); sizes are lifetime peaks in bytes.

    Attributes:
      computation: its name. backend: the solver.
      status: "optimal" (no order has a smaller peak), "feasible" (a limit was reached first),
        "unknown" (the program was too large to build) or "error" (the solver failed).
      start_bytes: of the search's order, with which the solver began.
      peak_bytes: of the order that came out; never more.
      cut_bytes: the bound with which it began, by minimum cuts and the like.
      bound_bytes: no order has a smaller one: the solver's, where that is more.
      variables, rows: of the program; 0 where it was not built.
      seconds: building it, solving it and checking the order.
      message: what the solver said, or what kept it from an answer.
      what: "order"; older plan files have others too, heights of an arena.
    """

    computation: str
    backend: str
    status: str
    start_bytes: int
    peak_bytes: int
    cut_bytes: int
    bound_bytes: int
    variables: int
    rows: int
    seconds: float
    message: str
    what: str = "order"

    @property
    def gap(self) -> float:
        """(peak - bound) / bound: 0 where the peak is proven to be the least."""
        return (self.peak_bytes - self.bound_bytes) / max(self.bound_bytes, 1)

    @property
    def proven_by(self) -> str:
        """What proved the least peak: "cut" (the bound at the start), "solver", or ""."""
        if self.peak_bytes > self.bound_bytes:
            return ""
        return "cut" if self.start_bytes <= self.cut_bytes else "solver"

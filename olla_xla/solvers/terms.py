"""Linear expressions that a formulation builds up before they become rows."""

from __future__ import annotations

import math

from olla_xla.errors import SolverError
from olla_xla.solvers.linear import LinearModel


class LinearTerms:
    """A linear expression that is built step by step: columns with coefficients, and a constant.

    Example:
      >>> model = LinearModel()
      >>> x = model.add_variable()
      >>> LinearTerms().plus(x, 2).plus_constant(1).into(model, upper=3)  # 2 x + 1 <= 3
    """

    __slots__ = ("coefficients", "columns", "constant")

    def __init__(self) -> None:
        self.columns: list[int] = []
        self.coefficients: list[int] = []
        self.constant = 0

    def plus(self, column: int, coefficient: int = 1) -> LinearTerms:
        """Adds `coefficient` times a variable (by its column) to the expression; returns self."""
        self.columns.append(column)
        self.coefficients.append(coefficient)
        return self

    def plus_constant(self, value: int) -> LinearTerms:
        """Adds a number to the expression; returns self."""
        self.constant += value
        return self

    def into(
        self,
        model: LinearModel,
        *,
        lower: float = -math.inf,
        upper: float = math.inf,
        tag: str = "",
    ) -> None:
        """Adds the row `lower <= expression <= upper` to a model; no row if it has no variables.

        Raises:
          SolverError: there are no columns, and the constant breaks the row: contradictory data.
        """
        if self.columns:
            model.add_row(
                self.columns,
                self.coefficients,
                lower - self.constant,
                upper - self.constant,
                tag=tag,
            )
        elif not lower <= self.constant <= upper:
            raise SolverError(f"constraint {tag} is unmet: {lower} <= {self.constant} <= {upper}")

"""The arguments of a module, and what each is to a train step.

An argument is told first by its readers: of those that a train step returns updated, parameters are
read by the derivative too, the optimizer's state by the update alone. Then by the names in its
path, which JAX writes to the module: "state['params']['w']". What the derivative reads and no
output replaces is the batch.
"""

from __future__ import annotations

import dataclasses
import re

from hlo.module import Module
from hlo.shapes import Shape
from hlo.values import Dataflow, Value
from olla_xla.memory.analysis.category import Category
from olla_xla.memory.analysis.op_names import Phase, phase_of
from olla_xla.memory.analysis.reading import DERIVATIVE, Reading, reading

__all__ = ["Argument", "arguments", "name_category"]

_WORD = re.compile(r"[A-Za-z_]+")
_OPTIMIZER = frozenset("opt_state optimizer opt mu nu trace momentum velocity exp_avg".split())
_PARAMETERS = frozenset("params param parameters weights batch_stats model".split())
_BATCH = frozenset(
    "batch inputs input labels label tokens images image targets target data xs ys".split()
)


@dataclasses.dataclass(frozen=True)
class Argument:
    """One array that a module takes.

    Attributes:
      number: of the entry parameter. index: within it, () where it is no tuple.
      path: in the function's arguments, as JAX writes it; "argument 3" where it wrote none.
      value: the value that it is on entry.
      category: what it is to a train step.
      donated: an output takes over its memory, or XLA may.
    """

    number: int
    index: tuple[int, ...]
    path: str
    value: Value
    category: Category
    donated: bool


def arguments(dataflow: Dataflow) -> list[Argument]:
    """The arguments of a module, by number."""
    module = dataflow.module
    results = _results(dataflow) if _trains(module) else None
    found = []
    for parameter in module.entry.parameters:
        for index, shape in parameter.shape.indices():
            if shape.is_tuple:
                continue
            path = parameter.op_name or f"argument {parameter.parameter_number}"
            path += "".join(f"[{k}]" for k in index)
            value = dataflow.at[parameter, index]
            where = (parameter.parameter_number, index)
            donated = where in module.donated or where in module.donors
            category = name_category(path) or Category.ARGUMENTS
            if results is not None:
                made_by = results.get(_type(shape), set())
                category = _category(path, shape, reading(dataflow, value), donated, made_by)
            found.append(Argument(*where, path, value, category, donated))
    return found


def _trains(module: Module) -> bool:
    """Whether a module has a backward pass, in whatever loop."""
    return any(
        phase_of(i.op_name) is Phase.BACKWARD for c in module.computations for i in c.instructions
    )


def _type(shape: Shape) -> tuple[str, tuple[int, ...]]:
    return shape.dtype, tuple(shape.dimensions)


def _results(dataflow: Dataflow) -> dict[tuple[str, tuple[int, ...]], set[Phase]]:
    """Type of the module's results -> phases of the operations that make them."""
    root = dataflow.module.entry.root
    assert root is not None
    found: dict[tuple[str, tuple[int, ...]], set[Phase]] = {}
    for index, shape in root.shape.indices():
        if not shape.is_tuple:
            maker = dataflow.at[root, index].instruction
            found.setdefault(_type(shape), set()).add(phase_of(maker.op_name))
    return found


def name_category(path: str) -> Category | None:
    """The category of an argument by the names in its path; None where these say nothing."""
    words = [word.strip("_") for word in _WORD.findall(path)]
    if any(word in _OPTIMIZER for word in words):
        return Category.OPTIMIZER
    for word in words:
        if word in _PARAMETERS:
            return Category.PARAMETERS
        if word in _BATCH:
            return Category.BATCH
    return None


def _category(
    path: str, shape: Shape, read: Reading, donated: bool, made_by: set[Phase]
) -> Category:
    """What an argument of a train step is; `made_by` are phases of results of its type."""
    named = name_category(path)
    derived, updated = bool(read.direct & DERIVATIVE), Phase.OTHER in read.direct
    if updated and (donated or Phase.OTHER in made_by or Phase.BACKWARD in made_by):
        if derived:
            return Category.PARAMETERS
        if not read.reached & DERIVATIVE:
            return named if named is Category.PARAMETERS else Category.OPTIMIZER
    if named is not None:
        return named
    if derived and (donated or Phase.BACKWARD in made_by):  # replaced, or its gradient is returned
        return Category.PARAMETERS
    is_data = bool(read.reached & DERIVATIVE) and bool(shape.dimensions)
    return Category.BATCH if is_data else Category.ARGUMENTS

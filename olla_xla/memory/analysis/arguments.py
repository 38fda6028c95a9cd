"""The arguments of a module, and what each is to a train step.

JAX writes the path of each argument in its pytree to the module: "state['params']['w']". Names in
the path tell parameters, optimizer state and batch apart; where they say nothing, it is what reads
the argument: state that only the update reads is the optimizer's.
"""

from __future__ import annotations

import dataclasses
import re

from hlo.values import Dataflow, Value
from olla_xla.memory.analysis.category import Category
from olla_xla.memory.analysis.op_names import Phase, phase_of
from olla_xla.memory.analysis.origins import Origins

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


def arguments(dataflow: Dataflow, origins: Origins) -> list[Argument]:
    """The arguments of a module, by number."""
    module = dataflow.module
    op_names = {i.op_name for i in module.entry.instructions}
    trains = any(phase_of(name) is Phase.BACKWARD for name in op_names)
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
            category = name_category(path) or _category_by_use(value, donated, trains, origins)
            found.append(Argument(*where, path, value, category, donated))
    return found


def name_category(path: str) -> Category | None:
    """What the names in an argument's path say it is; None where they say nothing."""
    words = [word.strip("_") for word in _WORD.findall(path)]
    if any(word in _OPTIMIZER for word in words):
        return Category.OPTIMIZER
    for word in words:
        if word in _PARAMETERS:
            return Category.PARAMETERS
        if word in _BATCH:
            return Category.BATCH
    return None


def _category_by_use(value: Value, donated: bool, trains: bool, origins: Origins) -> Category:
    """What an argument is by what reads it; `trains` is whether the module has a backward pass."""
    phases = {phase_of(origins.at(use.instruction).op_name) for use in value.uses}
    if not phases & {Phase.FORWARD, Phase.BACKWARD, Phase.AGAIN}:
        return Category.OPTIMIZER if donated and trains else Category.ARGUMENTS
    return Category.PARAMETERS if donated else Category.BATCH

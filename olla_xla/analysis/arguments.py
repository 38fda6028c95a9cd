"""The arguments of a module, and what each is to a train step.

An argument is told first by its readers: of those that a train step returns updated, parameters are
read by the derivative too, the optimizer's state by the update alone. Then by the names in its
path, which JAX writes to the module: "state['params']['w']". What the derivative reads and no
output replaces is the batch. But the second operand of a product in the forward pass may be a
weight that is not trained.
"""

import dataclasses
import re

from hlo.shapes import Shape
from hlo.values import Dataflow, Value
from olla_xla.analysis.category import Category
from olla_xla.analysis.op_names import Phase, phase_of
from olla_xla.analysis.reading import DERIVATIVE, MOVING, Reading, reading, trains

_WORD = re.compile(r"[A-Za-z_]+")
_OPTIMIZER = frozenset("opt_state optimizer opt mu nu trace momentum velocity exp_avg".split())
_PARAMETERS = frozenset("params param parameters weights batch_stats model".split())
_BATCH = frozenset(
    "batch inputs input labels label tokens images image targets target data xs ys".split()
)


@dataclasses.dataclass(frozen=True)
class Argument:
    """One array that a module takes as an argument.

    Attributes:
      number: of the entry parameter. index: tuple index within it, () if it is no tuple.
      path: in the function's arguments, as JAX writes it; "argument 3" where it wrote none.
      value: the dataflow value that the argument defines.
      category: its role in a train step.
      donated: an output takes over its memory, or XLA may reuse it.
    """

    number: int
    index: tuple[int, ...]
    path: str
    value: Value
    category: Category
    donated: bool


def arguments(dataflow: Dataflow) -> list[Argument]:
    """All array arguments of a module with their categories, in the order of entry parameters."""
    module = dataflow.module
    results = _results(dataflow) if trains(module) else None
    arrays = []
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
                named = name_category(path) is Category.BATCH
                if category is Category.BATCH and not named and _may_weigh(dataflow, value):
                    category = Category.ARGUMENTS
            arrays.append(Argument(*where, path, value, category, donated))
    return arrays


def _type(shape: Shape) -> tuple[str, tuple[int, ...]]:
    return shape.dtype, tuple(shape.dimensions)


def _results(dataflow: Dataflow) -> dict[tuple[str, tuple[int, ...]], set[Phase]]:
    """(dtype, dimensions) of results -> phases (forward, ...) of operations that make them."""
    root = dataflow.module.entry.root
    assert root is not None
    phases: dict[tuple[str, tuple[int, ...]], set[Phase]] = {}
    for index, shape in root.shape.indices():
        if not shape.is_tuple:
            maker = dataflow.at[root, index].instruction
            phases.setdefault(_type(shape), set()).add(phase_of(maker.op_name))
    return phases


def name_category(path: str) -> Category | None:
    """Parameters, optimizer state or batch, by words in an argument's path; None if unknown."""
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
    """The category of a train step's argument: parameters, optimizer state, batch or other.

    It is found by the phases (forward, backward, ...) that read it, then by its path. `made_by`:
    phases that make results of its type, as parameters are updated and gradients returned.
    """
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


def _may_weigh(dataflow: Dataflow, value: Value) -> bool:
    """Whether a dot or convolution of the forward pass multiplies the argument with a computed
    value or, as second operand, with an argument that no update reads. Then it may be a weight that
    is not trained, and not data.
    """
    for use in value.uses:
        i, operand = use.instruction, use.operand
        inside = [(i, operand)]
        if i.opcode == "fusion":
            given = i.called[0].parameters[operand]
            inside = [(user, user.operands.index(given)) for user in given.users]
        for user, n in inside:
            forward = phase_of(user.op_name) is Phase.FORWARD
            if user.opcode not in ("dot", "convolution") or not forward:
                continue
            other = user.operands[1 - n].behind(*MOVING)
            if other.opcode == "parameter" and i.opcode == "fusion":
                other = i.operands[other.parameter_number].behind(*MOVING)
            if other.opcode != "parameter" or other.computation is not dataflow.module.entry:
                return True
            of = reading(dataflow, dataflow.at[other, ()])
            if n == 1 and Phase.OTHER not in of.direct:
                return True
    return False

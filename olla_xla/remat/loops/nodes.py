"""Leaves of the results of a loop body's operations, and properties of each and of its opcode."""

from __future__ import annotations

import dataclasses

from hlo.module import Instruction
from hlo.shapes import WIDER, Shape, ShapeIndex
from hlo.strides import sliced_outermost
from hlo.wire import INTEGERS


@dataclasses.dataclass(eq=False, slots=True)
class Node:
    """One leaf (an array) of the result of an instruction in a loop's body or in its fusions.

    Attributes:
      i: the instruction. index: tuple index of the leaf. shape: of the leaf.
      owner: the instruction of the body in which it runs; itself outside fusions.
      operands: leaves of its operands, one after the other.
    """

    i: Instruction
    index: ShapeIndex
    shape: Shape
    owner: Instruction
    operands: tuple[Node, ...] = ()

    def __repr__(self) -> str:
        return f"Node({self.i.name}{list(self.index) if self.index else ''})"

    @property
    def behind(self) -> Node:
        """The node before a chain of bitcasts, and of copies in the same layout and memory."""
        node = self
        while node.i.opcode in ("bitcast", "copy") and _keeps_bytes(node):
            node = node.operands[0]
        return node


def _keeps_bytes(node: Node) -> bool:
    if node.i.opcode == "bitcast":
        return True
    a, b = node.shape, node.operands[0].shape
    return a.minor_to_major == b.minor_to_major and a.memory_space == b.memory_space


def converts(node: Node) -> bool:
    """Whether a node converts between floating-point types, and keeps the layout."""
    if node.i.opcode != "convert":
        return False
    new, old = node.shape, node.operands[0].shape
    kinds = {old.element_type, new.element_type}
    return kinds <= {10, 11, 12, 16} and old.minor_to_major == new.minor_to_major


def whole_slice(node: Node) -> tuple[int, int] | None:
    """(dimension, number of slices) of a dynamic-slice of one contiguous slice; else None. Which
    bytes these are does not depend on the array's other dimensions.
    """
    if node.i.opcode != "dynamic-slice" or node.shape.element_bits < 8:
        return None
    whole = node.operands[0].shape
    axis = sliced_outermost(node.shape, whole)
    return None if axis is None else (axis, whole.dimensions[axis])


def widens(node: Node) -> bool:
    """Whether a node converts to a wider floating-point type, reversibly, and keeps the layout."""
    if node.i.opcode != "convert":
        return False
    new, old = node.shape, node.operands[0].shape
    types = old.element_type, new.element_type
    return types in WIDER and old.minor_to_major == new.minor_to_major


def is_exact(node: Node) -> bool:
    """Whether a node computes one integer of integers, by an operation that rounds nothing."""
    if node.i.opcode not in _EXACT or node.shape.num_elements != 1:
        return False
    return all(k.shape.element_type in INTEGERS for k in (node, *node.operands))


def is_each(i: Instruction) -> bool:
    """Whether an instruction is a fusion that only computes elementwise and moves elements."""
    return i.opcode == "fusion" and all(
        k.opcode in EACH or k.opcode in MOVES for k in i.called[0].instructions
    )


def leaf_indices(shape: Shape) -> list[ShapeIndex]:
    """The tuple indices of all arrays in a shape."""
    return [index for index, part in shape.indices() if not part.is_tuple]


PASSING = frozenset("tuple get-tuple-element opt-barrier optimization-barrier domain".split())

MOVES = frozenset(
    "bitcast broadcast concatenate constant copy dynamic-slice dynamic-update-slice iota reshape "
    "reverse slice transpose".split()
)
"""Opcodes that compute nothing."""

_EXACT = frozenset(
    "add and clamp compare convert maximum minimum multiply negate not or select subtract "
    "xor".split()
)
"""Opcodes whose results are exact on integers."""

EACH = frozenset(
    "abs add and atan2 bitcast-convert cbrt ceil clamp clz compare convert cosine divide erf "
    "exponential exponential-minus-one floor get-tuple-element is-finite log log-plus-one logistic "
    "maximum minimum multiply negate not or pad parameter popcnt power reduce-precision remainder "
    "round-nearest-afz round-nearest-even rsqrt select shift-left shift-right-arithmetic "
    "shift-right-logical sign sine sqrt subtract tan tanh tuple xor".split()
)
"""Opcodes that compute each element by itself: the order of elements does not matter."""

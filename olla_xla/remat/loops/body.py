"""A loop's body as one flat expression, with fusions and asynchronous calls opened.

A node is one leaf of an operation's result. Nodes have value numbers: equal numbers mean equal
bits. An operation gives the same bits for the same operands in the same kind of fusion (on a CPU,
also by the same code generator). One that only moves bytes gives the same bits anywhere. One that
is not known to be pure has a number of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from hlo.backend import platform
from hlo.cpu_code import CodeGenerator, code_generator
from hlo.exchange import MOVING, STARTS, asked, reduction, run_by, started_by
from hlo.module import Computation, Instruction
from hlo.rounding import keeps_precision
from hlo.shapes import Shape, ShapeIndex
from olla_xla.remat.loops.indices import Affine, Index, affine, is_known_type, result
from olla_xla.remat.loops.nodes import (
    MOVES,
    PASSING,
    Node,
    converts,
    is_each,
    is_exact,
    leaf_indices,
    whole_slice,
    widens,
)
from olla_xla.remat.purity import repeats


@dataclasses.dataclass(frozen=True, eq=False)
class StateRelation:
    """How the state of one loop corresponds to that of another: equal elements, counter, slices.

    Attributes:
      body: of the other loop. elements: element of the state -> the other loop's that it equals.
      counter: the element that counts. iteration: that counter, in terms of the other loop's.
      slices: dynamic-slice of a scan residual -> value number of what the other body wrote there.
    """

    body: LoopBody
    elements: Mapping[int, int]
    counter: int
    iteration: Affine
    slices: Mapping[Instruction, int]


class LoopBody:
    """A loop's body as nodes with value numbers, one node for each leaf of each result. Nodes with
    equal value numbers have equal bits, in the same iteration.

    Args:
      computation: the loop's. target: "cpu", "cuda" or "tpu".
      known: element of the state -> its value when each iteration begins (`Index`).
      together: whether a CPU compiles all of it as one function, in which no fusion's rounding
        depends on other instructions. terms: relates it to another loop, so that equal value
        numbers in both bodies mean equal bits; None: it is numbered by itself.

    Attributes:
      exact: whether a fusion must stay as it is to round alike, as on a CPU. target: as given.
      known: as given. computation: as given. root: leaf index -> node.
      fusions: owner -> the fusion that it runs: itself, or the one that an async-start wraps.
      exchanges: owner -> the collective that it runs, likewise. used: node -> nodes that read it.
    """

    def __init__(
        self,
        computation: Computation,
        target: str,
        known: Mapping[ShapeIndex, NDArray[Any]] | None = None,
        *,
        together: bool = False,
        terms: StateRelation | None = None,
    ) -> None:
        self.computation = computation
        self.target = target
        self.exact = platform(target).keeps_code and not together
        self._keeps_precision = platform(target).keeps_precision
        self._terms = terms
        self._ends: dict[Instruction, dict[Node, bool]] = {}
        self._generators: dict[Instruction, CodeGenerator | None] = {}
        self.at: dict[tuple[Instruction, ShapeIndex], Node] = {}
        self.fusions: dict[Instruction, Instruction] = {}
        self.exchanges: dict[Instruction, Instruction] = {}
        self.used: dict[Node, list[Node]] = {}
        self._keys: dict[Any, int] = {} if terms is None else terms.body._keys
        self._inner: dict[Node, int] = {}
        self._outer: dict[Node, int] = {}
        self._moved: dict[Node, bool] = {}
        self._attributes: dict[Instruction, bytes] = {}
        self._each: dict[Instruction, bool] = {}
        self.known = known or {}
        self._indices: dict[Node, Index] = {}
        self._lines: dict[tuple[Node, bool], Affine | None] = {}
        self._nodes: list[Node] = []
        for i in computation.instructions:
            self._add(i, i)
        assert computation.root is not None
        self.root = self.leaves(computation.root)

    def count(self, known: Mapping[ShapeIndex, NDArray[Any]]) -> None:
        """Sets the state elements whose value in each iteration is known, and numbers all nodes."""
        self.known = known
        self._indices.clear()
        self._lines.clear()
        for node in self._nodes:  # operands first, so that no recursion is deep
            self.index(node)
            self.moved(node)
            self._inside(node)
            self.number(node)

    def leaves(self, i: Instruction) -> dict[ShapeIndex, Node]:
        """Tuple index -> node, for each array in an instruction's result."""
        return {index: self.at[i, index] for index in leaf_indices(i.shape)}

    def runs(self, owner: Instruction) -> Instruction:
        """Returns the fusion, collective or slice that an async-start runs; of others, `owner`."""
        run = self.fusions.get(owner) or self.exchanges.get(owner)
        if run is None and owner.opcode == "async-start":
            run = owner.called[0].root
        return run or owner

    def root_of(self, owner: Instruction) -> Node | None:
        """Returns the result's node of what an instruction runs (`runs`); None if it is a tuple."""
        i = self.runs(owner)
        return None if i.shape.is_tuple else self.at[i, ()]

    def each(self, owner: Instruction) -> bool:
        """Whether an instruction is, or runs asynchronously, an elementwise fusion; cached."""
        if owner not in self._each:
            self._each[owner] = owner in self.fusions and is_each(self.fusions[owner])
        return self._each[owner]

    # The nodes.

    def _add(self, i: Instruction, owner: Instruction) -> None:
        given = [self.leaves(o) for o in i.operands]
        if i is owner and (exchange := run_by(i) or started_by(i)) is not None:
            self.exchanges[owner] = exchange
        if i.opcode in ("fusion", "async-start"):
            inner = self._call(i, owner, given)
            if i.opcode == "fusion":
                self._set(i, inner)
                return
            self._define(i, owner, [])  # its context
            for k, operand in enumerate(given):
                self._set(i, {(0, k, *index): node for index, node in operand.items()})
            self._set(i, {(1, *index): node for index, node in inner.items()})
        elif i.opcode == "async-update":
            self._set(i, given[0])
        elif i.opcode == "async-done":
            self._set(i, {x[1:]: node for x, node in given[0].items() if x and x[0] == 1})
        elif i.opcode == "get-tuple-element":
            k = i.tuple_index
            self._set(i, {x[1:]: node for x, node in given[0].items() if x[0] == k})
        elif i.opcode.endswith("-done") and self._starts(i.operands[0]):
            self._set(i, {(): given[0][1,]})
        elif i.opcode == "reduce-precision" and self._keeps_precision and keeps_precision(i):
            self._set(i, given[0])
        elif i.opcode in PASSING and (i.opcode == "tuple" or len(given) > 1):
            packed = enumerate(given)
            self._set(i, {(k, *x): node for k, operand in packed for x, node in operand.items()})
        elif i.opcode in PASSING:
            self._set(i, given[0])
        else:
            self._define(i, owner, given)

    def _set(self, i: Instruction, nodes: dict[ShapeIndex, Node]) -> None:
        for index, node in nodes.items():
            self.at[i, index] = node

    def _define(
        self, i: Instruction, owner: Instruction, given: list[dict[ShapeIndex, Node]]
    ) -> None:
        operands = tuple(node for leaves in given for node in leaves.values())
        if i.opcode == "dynamic-update-slice":
            whole, part, *starts = operands
            operands = whole, self._converted(part, whole.shape, owner), *starts
        for index in leaf_indices(i.shape):
            if index == (0,) and self._starts(i):
                self.at[i, index] = operands[0]  # handed on
                continue
            node = Node(i, index, i.shape.at(index), owner, operands)
            self.at[i, index] = node
            self._nodes.append(node)
            for operand in dict.fromkeys(operands):
                self.used.setdefault(operand, []).append(node)

    def _starts(self, i: Instruction) -> bool:
        """Whether an instruction starts a transfer of one device array (`exchange.started_by`)."""
        return i.opcode in STARTS and i in self.exchanges

    def _converted(self, part: Node, whole: Shape, owner: Instruction) -> Node:
        """Returns the node of a slice, `part`, as a dynamic-update-slice writes it into `whole`:
        itself, or a new node where XLA:TPU converts it to the type of `whole`.
        """
        if part.shape.element_type == whole.element_type:
            return part
        shape = part.shape.converted(whole)
        i = Instruction(-1, f"{part.i.name}.converted", "convert", shape, part.i.computation)
        node = Node(i, (), shape, owner, (part,))
        self._nodes.append(node)
        self.used.setdefault(part, []).append(node)
        return node

    def _call(
        self, i: Instruction, owner: Instruction, given: list[dict[ShapeIndex, Node]]
    ) -> dict[ShapeIndex, Node]:
        (callee,) = i.called
        if i.opcode == "fusion":
            # A fusion inside another one has borders of its own: neither is opened further.
            self._each.setdefault(owner, is_each(i))
            self.fusions.setdefault(owner, i)
        for k in callee.instructions:
            if k.opcode == "parameter":
                self._set(k, given[k.parameter_number])
            else:
                self._add(k, owner)
        assert callee.root is not None
        return self.leaves(callee.root)

    # Their numbers.

    def attributes(self, i: Instruction) -> bytes:
        """Returns an instruction's `attributes`, serialized; cached."""
        if i not in self._attributes:
            self._attributes[i] = i.attributes
        return self._attributes[i]

    def number(self, node: Node) -> int:
        """Gives a node, as its instruction's result, a value number: equal ones mean equal bits."""
        if node not in self._outer:
            self._outer[node] = self._number(node)
        return self._outer[node]

    def between(self, number: int, move: Instruction) -> int:
        """Returns the value number of what `move`, outside of the loop, makes of value `number`."""
        return self._key("between", number, move)

    def moved(self, node: Node) -> bool:
        """Whether a node, and what makes it within its instruction, only moves or widens elements
        or computes single integers, so that it is the same in any code. True for parameters, too.
        """
        if node not in self._moved:
            inside = (o for o in node.operands if o.owner is node.owner)
            moving = node.i.opcode in MOVES or widens(node) or is_exact(node)
            self._moved[node] = (
                node.i.opcode == "parameter"
                or self.affine(node) is not None
                or (moving and all(self.moved(o) for o in inside))
            )
        return self._moved[node]

    def copied(self, node: Node) -> bool:
        """Whether a node only moves or widens elements (`moved`), or converts such a node of the
        same instruction to another floating-point type.
        """
        node = node.behind
        if converts(node) and node.operands[0].owner is node.owner:
            (node,) = node.operands
        return self.moved(node)

    def affine(self, node: Node, *, whole: bool = False) -> Affine | None:
        """A scalar integer as a multiple of an element of the state plus a constant, or a constant
        alone; else None. With `whole`, that must hold for whole numbers, not just modulo 2**bits.
        """
        if (node, whole) not in self._lines:
            counter = next((k for k, values in self.known.items() if values.ndim), None)
            self._lines[node, whole] = affine(self.index(node), counter, whole=whole)
        return self._lines[node, whole]

    def index(self, node: Node) -> Index:
        """Returns a scalar integer's value in each iteration (`Index`); None if it is not known."""
        if node not in self._indices:
            self._indices[node] = self._index(node)
        return self._indices[node]

    def _index(self, node: Node) -> Index:
        kind = node.shape.element_type
        if not is_known_type(node.shape):
            return None
        if node.i.opcode == "parameter":
            return self.known.get(node.index, Affine(node.index, 1, 0))
        if node.i.opcode == "bitcast" and node.operands[0].shape.element_type != kind:
            return None
        return result(node.i, node.shape, [self.index(o) for o in node.operands])

    def _in_terms(self, affine: Affine) -> Affine | None:
        """Writes a multiple of a state element by the other loop's state; None if that has no such
        element. It stays as it is if it is a constant, or there is no other loop.
        """
        terms = self._terms
        if terms is None or affine.element is None:
            return affine
        (k,) = affine.element
        if k == terms.counter:
            base, factor = terms.iteration, affine.factor
            return Affine(base.element, factor * base.factor, factor * base.offset + affine.offset)
        other = terms.elements.get(k)
        return None if other is None else Affine((other,), affine.factor, affine.offset)

    def _number(self, node: Node) -> int:
        node = node.behind
        if node in self._outer:
            return self._outer[node]
        inner = self._inside(node)
        if self.moved(node) or self.exchanges.get(node.owner) is node.i:
            return inner
        owner = self.runs(node.owner)
        code: Any = self.generator(owner)
        ends = self._ends_of(node.owner)
        if code is CodeGenerator.ANY or node not in ends:
            code = owner  # in other code it may be rounded otherwise
        is_put = ends.get(node, False) and not self.each(node.owner)
        return self._key("made", owner.fusion_kind, code, owner.backend_config, is_put, inner)

    def _ends_of(self, owner: Instruction) -> dict[Node, bool]:
        """Maps an instruction's result nodes to False, slices that it writes into them to True."""
        if owner not in self._ends:
            ends = self._ends[owner] = {}
            for leaf in self.leaves(self.runs(owner)).values():
                end = leaf.behind
                if end.i.opcode == "dynamic-update-slice" and end.owner is owner:
                    ends.setdefault(end.operands[1].behind, True)
                ends[end] = False
        return self._ends[owner]

    def generator(self, fusion: Instruction) -> CodeGenerator | None:
        """XLA:CPU's code generator of a fusion; None if rounding does not depend on it."""
        if fusion.opcode != "fusion" or not (self.exact and platform(self.target).has_tiles):
            return None
        if fusion not in self._generators:
            self._generators[fusion] = code_generator(fusion.called[0])
        return self._generators[fusion]

    def _inside(self, node: Node) -> int:
        """Returns a node's value number inside its fusion, whose code has not rounded it yet."""
        node = node.behind
        if node not in self._inner:
            affine, kind = self.affine(node), node.shape.element_type
            if affine is not None:
                said = self._in_terms(affine)
                here = ("integer", kind, said) if said else ("integer of another", kind, affine)
                self._inner[node] = self._key(*here)
            elif self._terms is not None and node.i in self._terms.slices:
                self._inner[node] = self._terms.slices[node.i]
            elif node.i.opcode == "parameter":
                self._inner[node] = self._parameter(node.index)
            elif self.exchanges.get(node.owner) is node.i:
                self._inner[node] = self._exchanged(node)
            elif converts(node):
                (source,) = node.operands
                types = source.shape.element_type, node.shape.element_type
                self._inner[node] = self._key("converted", *types, self._read(node, source))
            elif (slices := whole_slice(node)) is not None:
                whole, at = node.operands[0], node.operands[1 + slices[0]]
                read = self._read(node, whole), self._read(node, at)
                self._inner[node] = self._key("slice", node.shape.element_bits, slices[1], *read)
            elif not repeats(node.i):
                self._inner[node] = self._key("once", node.i, node.index)
            else:
                read = tuple((self._read(node, o), o.shape.key) for o in node.operands)
                called = tuple(c.name for c in node.i.called)
                what = self.attributes(node.i)
                self._inner[node] = self._key("operation", what, called, node.index, read)
        return self._inner[node]

    def _read(self, node: Node, operand: Node) -> int:
        """Returns the value number of `operand` as `node` reads it: in its fusion, or a result."""
        return self._inside(operand) if operand.owner is node.owner else self.number(operand)

    def _parameter(self, index: ShapeIndex) -> int:
        if self._terms is None:
            return self._key("element", index)
        other = self._terms.elements.get(index[0])
        if other is None:
            return self._key("element of another loop", index)
        return self._key("element", (other,))

    def _exchanged(self, node: Node) -> int:
        """Returns the value number of a collective's result: equal for equal collectives and
        operands. The state of a transfer that is under way has a number of its own.
        """
        given, i = self.made_of(node), node.i
        if i.opcode in STARTS and node.index != (1,):
            return self._key("once", i, node.index)  # the transfer's state
        if i.opcode in MOVING and len(given) == 1:
            said: tuple[Any, ...] = (node.shape.key,)
        else:
            said = (node.index, i.shape.key, reduction(i))
        read = tuple((self._read(node, o), o.shape.key) for o in given)
        return self._key("exchanged", asked(i), said, read)

    def made_of(self, node: Node) -> tuple[Node, ...]:
        """Returns the operands that make a node: of a collective that only moves data, its own."""
        given, i = node.operands, node.i
        if i.opcode in MOVING and len(leaf_indices(i.shape)) == len(given):
            return (given[node.index[0] if node.index else 0],)
        return given

    def handed_on(self, node: Node) -> int:
        """Returns a number that nodes share if copies and collectives that only move data make them
        of the same elements, in whatever layout.
        """
        while node.i.opcode == "copy":
            (node,) = node.operands
        i = node.i
        moving = node.index == (1,) if i.opcode in STARTS else i.opcode in MOVING
        if self.exchanges.get(node.owner) is not i or len(node.operands) != 1 or not moving:
            return self._key("elements", self.number(node), node.shape.key)
        extents = node.shape.element_type, node.shape.dimensions
        return self._key("handed on", asked(i), extents, self.handed_on(node.operands[0]))

    def _key(self, *parts: Any) -> int:
        return self._keys.setdefault(parts, len(self._keys))

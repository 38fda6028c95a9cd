"""Which kernels' rounding may depend on which of their buffers share memory.

A compiler may contract a multiplication and the addition that reads it to an FMA. Where an addition
reads two products it can contract either; which one may depend on all of the kernel's code, loads
and stores included. Where no addition does, there is no choice; on a CPU none either where one of
the products has another reader, as LLVM contracts a multiplication only if the addition is its one
use. Written from XLA's definitions of operations, without the planner's own test, so that the two
do not share mistakes.
"""

import math
from collections.abc import Collection, Iterable

from hlo.shapes import Shape
from hlo.wire import INTEGERS
from olla_xla.check.executable.program import CONTROL_FLOW, Body, Op

_FLOATS = (10, 11, 12, 16)
"""Element types f16, f32, f64 and bf16."""
_COMPLEX_TYPES = (15, 18)

_EXACT = frozenset(
    "abs ceil clamp compare constant floor iota is-finite maximum minimum parameter "
    "round-nearest-afz round-nearest-even sign sqrt".split()
)
"""Opcodes whose floating-point result is no product: it is rounded, or read, before it is added."""

_WHOLE = frozenset("and gather not or rng xor".split())
"""Other opcodes whose result is no product."""

_TRANSPARENT = frozenset(
    "bitcast broadcast concatenate convert copy dynamic-slice dynamic-update-slice "
    "get-tuple-element negate pad reshape reverse select slice transpose tuple".split()
)
"""Opcodes whose results are elements of operands, or their negatives."""

_ELEMENTWISE = frozenset(
    "abs add and atan2 cbrt ceil clamp compare convert cosine divide erf exponential "
    "exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum multiply "
    "negate not or power remainder rsqrt select sine sqrt subtract tan tanh xor".split()
)
_TILE_TYPES = (1, 2, 3, 4, 5, *_FLOATS)
"""What XLA's tiled code generator for CPUs takes, beside parameters; its code does not depend on
shared memory."""

_STRAIGHT = 8192
"""Elements: loops over at most so many may be unrolled, so that fusions share one code block."""

_ADDING = frozenset("add subtract reduce reduce-window".split())


def is_settled(bodies: Iterable[Body]) -> bool:
    """Whether operations of a function (all `bodies`) surely round alike whatever others it has."""
    adds = multiplies = False
    for body in bodies:
        for op in body.ops:
            if op.opcode == "fusion" and _Sums(op.called[0], ()).is_open:
                return False
            if op.opcode != "fusion" and op.opcode not in CONTROL_FLOW:
                if op.called or _computes_complex(op):
                    return False
            for step in op.called[0].ops if op.opcode == "fusion" else (op,):
                if not _is_short(step) or step.opcode in CONTROL_FLOW:
                    continue
                if step.opcode in _ADDING:
                    adds = True
                elif step.opcode not in _EXACT and step.opcode not in _TRANSPARENT:
                    multiplies |= step.opcode not in _WHOLE
    return not (adds and multiplies)


def _is_short(op: Op) -> bool:
    """Whether an operation may round, and its arrays have at most 8192 elements (`_STRAIGHT`)."""
    shapes = [part for o in (op, *op.operands) for _, part in o.shape.indices() if part.is_array]
    return any(map(_is_rounded, shapes)) and all(
        math.prod(s.dimensions) <= _STRAIGHT for s in shapes
    )


class Rounding:
    """Decides which kernels for `target` ("cpu", "cuda" or "tpu") may round differently when other
    buffers of theirs share memory.
    """

    def __init__(self, target: str) -> None:
        self._tiles = target == "cpu"

    def depends_on_memory(self, op: Op) -> bool:
        """Whether an operation's result may depend on which of its buffers share memory."""
        if op.opcode != "fusion":
            return _computes_complex(op)
        (body,) = op.called
        if self._tiles and op.proto.fusion_kind == "kCustom":
            return False  # a library's function, YNNPACK's
        if self._tiles and all(_has_tiles(inner) for inner in body.ops):
            return False
        return _Sums(body, (), _settled(body) if self._tiles else ()).is_open


def lacks_index(fusion: Op) -> bool:
    """Whether a CPU's fusion slices or updates all of an array, and its rounding may vary."""
    (body,) = fusion.called
    return _takes_only_slice(body) and _Sums(body, (), _settled(body)).is_open


def _takes_only_slice(body: Body) -> bool:
    for op in body.ops:
        if op.opcode == "fusion" and _takes_only_slice(op.called[0]):
            return True
        if op.opcode in ("dynamic-slice", "dynamic-update-slice"):
            part = op if op.opcode == "dynamic-slice" else op.operands[1]
            if part.shape.dimensions == op.operands[0].shape.dimensions:
                return True
    return False


def _has_tiles(op: Op) -> bool:
    return is_tiled(op) or (op.opcode == "parameter" and op.shape.element_type in _TILE_TYPES)


def is_tiled(op: Op) -> bool:
    """Whether XLA's tiled code generator for CPUs always takes an operation."""
    return op.opcode in _ELEMENTWISE and op.shape.element_type in _TILE_TYPES


def _computes_complex(op: Op) -> bool:
    """Whether an operation computes with complex numbers, whose products are sums of two."""
    if op.opcode in _TRANSPARENT - {"convert", "negate"} or op.opcode in ("parameter", "constant"):
        return False
    return any(o.shape.element_type in _COMPLEX_TYPES for o in (op, *op.operands))


def _settled(body: Body) -> set[Op]:
    """Additions of two products of which only one can become an FMA, in whatever code.

    That is a product that nothing else reads; the other one has multiplications as readers, too.
    All are computed once for an element of the result, where a loop writes that.
    """
    users, last = body.users, body.result
    while last.opcode in ("bitcast", "dynamic-update-slice") and len(users.get(last, ())) < 2:
        last = last.operands[1 if last.opcode == "dynamic-update-slice" else 0]
    once = {last} if len(users.get(last, ())) == (last is not body.result) else set()
    for op in reversed(body.ops):
        readers = [r for r, _ in users.get(op, ())]
        kinds = _ELEMENTWISE if len(readers) > 1 else _ELEMENTWISE | {"bitcast"}
        if readers and all(r.opcode in kinds and r in once for r in readers):
            once.add(op)
    additions = set()
    for add in once:
        others = [[r.opcode for r, _ in users[o] if r is not add] for o in add.operands]
        if (
            add.opcode in ("add", "subtract")
            and math.prod(add.shape.dimensions) > _STRAIGHT
            and once.issuperset(products := [o.behind("bitcast") for o in add.operands])
            and {o.opcode for o in products} == {"multiply"}
            and len(set(add.operands)) == 2
            and sum(not opcodes for opcodes in others) == 1
            and {opcode for opcodes in others for opcode in opcodes} == {"multiply"}
        ):
            additions.add(add)
    return additions


class _Sums:
    """Tells whether an addition may read two products, either of which could become an FMA with it.

    Args:
      body: the computation. products: numbers of parameters that may be products.
      settled: sums of two products that leave no choice.

    Attributes:
      is_open: whether there is such an addition.
      gives_product: whether the result may be a product.
    """

    def __init__(self, body: Body, products: tuple[int, ...], settled: Collection[Op] = ()) -> None:
        self.is_open = False
        self._settled = settled
        self._products = {body.parameters[k] for k in products}
        for op in body.ops:
            self._look_at(op)
        self.gives_product = body.result in self._products

    def _look_at(self, op: Op) -> None:
        made_of = [k for k, o in enumerate(op.operands) if o in self._products]
        if _computes_complex(op):
            self.is_open = True
        elif op.opcode in ("add", "subtract"):
            chosen = len(made_of) == 2 and _is_rounded(op.shape)
            self.is_open |= chosen and op not in self._settled
        elif op.called:
            self._enter(op, made_of)
        elif op.shape.element_type in INTEGERS:
            return  # exact; an index of what is handed on, too, is no product
        elif op.opcode not in _EXACT and (made_of or op.opcode not in _TRANSPARENT):
            self._products.add(op)

    def _enter(self, op: Op, made_of: list[int]) -> None:
        """Looks for sums and products in `op`'s computations.

        `made_of`: numbers of the operands that may be products.
        """
        for body in op.called:
            count = len(body.parameters)
            given = made_of if count == len(op.operands) else range(count) if made_of else ()
            sums = _Sums(body, tuple(given))
            self.is_open |= sums.is_open
            if sums.gives_product or op.opcode not in ("fusion", "map", "reduce", "reduce-window"):
                self._products.add(op)


def _is_rounded(shape: Shape) -> bool:
    """Whether an array counts as one whose arithmetic rounds: floats, and XLA's newer types."""
    return shape.element_type >= 19 or shape.element_type in _FLOATS

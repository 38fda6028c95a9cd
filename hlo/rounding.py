"""Whether the rounding of a kernel may depend on which of its buffers are the same memory.

XLA compiles a kernel from its fusion and from which of its operands and results lie in the same
memory. LLVM then orders loads otherwise, and it may fuse a product into the addition that reads it
(`llvm::FPOpFusion::Fast`). Of a sum of two products it fuses one and rounds the other, and which
one depends on the code around them. With at most one product in each sum there is no such choice.
On a CPU there is none either where one of the two is read again: LLVM fuses the one that nothing
else reads (`DAGCombiner::visitFADDForFMACombine`).

The test is on the syntax of a fused computation and errs on the side of saying that it may.
"""

from collections.abc import Iterable

from hlo.backend import platform
from hlo.cpu_code import TILED, CodeGenerator, code_generator
from hlo.module import Computation, Instruction

_BITS = {10: (5, 10), 11: (8, 23), 12: (11, 52), 16: (8, 7)}
"""Bits of exponent and mantissa, by XLA's number of the type: f16, f32, f64, bf16."""

_FLOATING = frozenset({10, 11, 12, 16, 19, 20, 23, 24, 25, 28, 29, 31, 32, 33})
"""XLA's element types of floating point: f16, f32, f64, bf16, the 8-bit and smaller ones."""
_COMPLEX = frozenset({15, 18})

_HANDED_ON = frozenset(
    "bitcast bitcast-convert broadcast concatenate convert copy dynamic-slice dynamic-update-slice "
    "gather get-tuple-element negate pad reshape reverse select slice transpose tuple".split()
)
"""Opcodes whose result may be an operand's element, or its negative: a product if that was one."""

_NO_PRODUCT = frozenset(
    "add subtract maximum minimum clamp parameter constant iota compare and or xor not abs sign "
    "floor ceil round-nearest-afz round-nearest-even is-finite sqrt rng".split()
)
"""Opcodes whose result is never the product that an addition after them could be fused with."""

_UNROLLED = 1 << 13
"""Elements; code for a larger array stays a loop, separate from the loops of other arrays."""

MOVED = _HANDED_ON - {"convert", "negate", "select"} | {"parameter", "constant", "iota"}
"""Opcodes that compute nothing, of complex numbers neither."""


def may_depend_on_memory(i: Instruction, target: str) -> bool:
    """Whether an instruction's rounding may change with which operands and results share memory.

    Args:
      i: in a computation that control flow runs, not in a fused one. target: "cpu" or "cuda".
    """
    if i.opcode != "fusion":
        return _is_complex(i)
    body = i.called[0]
    if platform(target).is_host and i.fusion_kind == "kCustom":
        return False  # a library runs it (YNNPACK), whose code was compiled before
    if platform(target).has_tiles and code_generator(body) is CodeGenerator.TILES:
        return False
    determined = _determined(body) if platform(target).is_host else frozenset()
    return _Products(determined).is_sensitive(body)


def _determined(body: Computation) -> frozenset[Instruction]:
    """Finds sums, of large arrays, where it is certain which of two products LLVM fuses with them.
    It is the one that nothing else reads. What reads the products must be computed with the root's
    element, in one block of code, and loops must stay loops: code then reads what computations do.
    """
    assert body.root is not None
    root, straight = body.root, {body.root}
    while root.opcode in ("bitcast", "dynamic-update-slice"):
        root = root.operands[root.opcode == "dynamic-update-slice"]
        if not straight.issuperset(root.users):
            return frozenset()
        straight.add(root)
    for i in reversed(body.instructions):
        moved = len(i.users) == 1 and i.users[0].opcode == "bitcast"
        if i.users and all(u in straight and (moved or u.opcode in TILED) for u in i.users):
            straight.add(i)
    return frozenset(
        i
        for i in straight
        if i.opcode in ("add", "subtract")
        and i.shape.num_elements > _UNROLLED
        and straight.issuperset(i.operands)
        and _has_one_choice(i)
    )


def _has_one_choice(i: Instruction) -> bool:
    """Whether `i` adds two products: one that it alone reads, one that multiplies read as well."""
    once, again = sorted(i.operands, key=lambda o: len(o.users))
    others = {u.opcode for u in again.users if u is not i}
    products = set()
    for o in (once, again):
        while o.opcode == "bitcast" and len(o.operands[0].users) == 1:
            o = o.operands[0]
        products.add(o.opcode)
    return once.users == [i] and products == others == {"multiply"}


def may_depend_on_others(computations: Iterable[Computation]) -> bool:
    """Whether a compiled function's results may round otherwise if it also contains other code.

    For small arrays LLVM unrolls loops completely. A product may then be fused into an addition of
    another fusion, or no longer be fused if it gets another use. So small arrays must not have both
    products and sums. Loops over large arrays stay apart; only a sum of two products is a choice.
    True also where it is not known: for complex numbers, and reductions and the like.

    Args:
      computations: those compiled into the function, but no bodies of fusions.
    """
    products = sums = False
    for body in computations:
        for i in body.instructions:
            if i.opcode == "fusion":
                if _Products().is_sensitive(i.called[0]):
                    return True
            elif _is_complex(i) or (i.called and i.opcode not in _STEPS):
                return True  # seldom, and not looked into
            inside = i.called[0].instructions if i.opcode == "fusion" else [i]
            for k in inside:
                if _is_small(k) and k.opcode not in _HANDED_ON and k.opcode not in _STEPS:
                    reduces = k.opcode in ("reduce", "reduce-window")
                    sums |= reduces or k.opcode in ("add", "subtract")
                    products |= not reduces and k.opcode not in _NO_PRODUCT
    return products and sums


_STEPS = frozenset({"while", "conditional", "call"})


def _is_small(i: Instruction) -> bool:
    """Whether `i` reads or gives floating-point numbers, so few that LLVM unrolls its loops."""
    shapes = [s for o in (i, *i.operands) for _, s in o.shape.indices() if s.is_array]
    if not any(s.element_type in _FLOATING for s in shapes):
        return False
    return max(s.num_elements for s in shapes) <= _UNROLLED


def _is_complex(i: Instruction) -> bool:
    """Whether `i` computes with complex numbers, whose products are sums of two products."""
    shapes = (i.shape, *(o.shape for o in i.operands))
    return i.opcode not in MOVED and any(s.element_type in _COMPLEX for s in shapes)


class _Products:
    """Finds which values of fused computations may be products, and whether two of them are added.

    A value is a product where an addition that reads it could be fused with a multiplication.

    Args:
      determined: sums of two products whose rounding is certain (`_determined`).
    """

    def __init__(self, determined: frozenset[Instruction] = frozenset()) -> None:
        self._determined = determined
        self._is_product: dict[Instruction, bool] = {}

    def is_sensitive(self, body: Computation, given: tuple[bool, ...] = ()) -> bool:
        """Whether a computation may add two products, or has an operation that is not analysed.
        Records which of its values may be products.

        Args:
          body: the computation. given: whether each parameter may be a product; (): none.
        """
        known = self._is_product
        for i in body.instructions:
            read = [known[o] for o in i.operands]
            if _is_complex(i):
                return True
            if i.opcode == "parameter":
                known[i] = bool(given) and given[i.parameter_number]
            elif i.opcode in ("add", "subtract"):
                choice = all(read) and i not in self._determined
                if choice and i.shape.element_type in _FLOATING:
                    return True
                known[i] = False
            elif i.opcode in _HANDED_ON:
                known[i] = any(read)
            elif i.called:
                if self._is_sensitive_call(i, read):
                    return True
            elif i.shape.is_array and i.shape.element_type not in _FLOATING:
                known[i] = False  # whole numbers are exact, and as an index say nothing of values
            else:
                known[i] = i.opcode not in _NO_PRODUCT
        return False

    def _is_sensitive_call(self, i: Instruction, read: list[bool]) -> bool:
        """Applies `is_sensitive` to what `i` calls, and records whether `i` may be a product."""
        sensitive = False
        product = i.opcode not in ("reduce", "reduce-window", "fusion", "map")
        for body in i.called:
            given = (
                tuple(read)
                if len(body.parameters) == len(read)
                else (any(read),) * len(body.parameters)
            )
            sensitive |= self.is_sensitive(body, given)
            assert body.root is not None
            product |= self._is_product.get(body.root, True)
        self._is_product[i] = product
        return sensitive


def keeps_precision(i: Instruction) -> bool:
    """Whether a reduce-precision keeps all exponent and mantissa bits of f16, f32, f64 or bf16.

    JAX marks values saved for a backward pass by such ones. They leave every number as it is, but
    on some platforms not every NaN (`Platform.keeps_precision`).
    """
    assert i.proto is not None
    bits = _BITS.get(i.shape.element_type)
    return bits is not None and bits == (i.proto.exponent_bits, i.proto.mantissa_bits)

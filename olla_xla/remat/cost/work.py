"""What an instruction moves and computes: bytes and operations, counted from its shapes.

Bytes are those of its operands and results in memory. Of an operand that a fusion only slices, the
bytes read count; of a buffer updated in place, those written. Caches are left out.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hlo import convolution
from hlo.async_collective_fusion import own_part
from hlo.backend import platform
from hlo.exchange import REPEATABLE
from hlo.inplace import in_place_pairs
from hlo.module import Computation, Instruction
from hlo.shapes import ShapeIndex
from hlo.trip_count import trip_count
from hlo.walk import after_needs

if TYPE_CHECKING:
    from olla_xla.remat.cost.on_chip import Array

_FREE = frozenset(
    "parameter constant bitcast tuple get-tuple-element after-all partition-id replica-id "
    "opt-barrier optimization-barrier add-dependency domain".split()
)

_TRANSCENDENTAL = frozenset(
    "acos acosh asin asinh atan2 atanh cbrt cosh cosine erf exponential exponential-minus-one log "
    "log-plus-one logistic power sine sinh tan tanh".split()
)

_NO_ARITHMETIC = _FREE | frozenset(
    "bitcast-convert broadcast concatenate copy dynamic-slice dynamic-update-slice gather iota pad "
    "reshape reverse slice transpose".split()
)

_SEVERAL = {"divide": 4, "remainder": 4, "rsqrt": 4, "sqrt": 4}
"""Opcode -> how many times an addition it takes."""

_UNWRITTEN = ("AllocateBuffer", "CreateBuffer")  # custom calls that give memory as it is

_SLICES = ("slice", "dynamic-slice", "gather")


@dataclasses.dataclass(frozen=True)
class Work:
    """Bytes moved and operations computed by one run of an instruction or module.

    Attributes:
      bytes: moved to and from memory. transposed: of these, what a CPU reads across the layout,
        each element from a cache line of its own. near: of these, those moved to and from VMEM.
      operations: elementwise arithmetic. transcendentals: exp, log, tanh and the like.
      matrix: floating-point operations of dots and convolutions (two for a multiply-add).
      depthwise: those of convolutions that a CPU computes without a matrix product.
      narrow: like `matrix`, of operands of at most 16 bits, which are not counted there.
      kernels: operators that run, for the overhead of starting each.
      exchanged: bytes that a device sends to others, as in a ring of many: an all-gather's result
        less its operand, a reduce-scatter's operand less its result, an all-reduce's operand twice.
      hosted: of `bytes`, those moved to and from the host's memory.
    """

    bytes: int = 0
    operations: int = 0
    transcendentals: int = 0
    matrix: int = 0
    kernels: int = 0
    transposed: int = 0
    depthwise: int = 0
    narrow: int = 0
    exchanged: int = 0
    near: int = 0
    hosted: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(*map(operator.add, _figures(self), _figures(other)))

    def __mul__(self, times: int) -> Work:
        return Work(*(times * a for a in _figures(self)))


_figures = operator.attrgetter(*(f.name for f in dataclasses.fields(Work)))
"""All figures of a Work, in the order of its fields; `dataclasses.astuple` takes ten times as
long."""

_NOTHING = Work()


def work(i: Instruction, target: str) -> Work:
    """Counts what an instruction does by itself: bytes moved, operations, ... Nothing for what runs
    others step by step, as loops, or only passes values on, and for ends of transfers. `i`: of a
    computation that runs step by step. `target`: such as "cpu".
    """
    if i.opcode in _FREE or i.called_control or i.opcode.endswith("-done"):
        return Work()
    if i.opcode == "custom-call" and i.custom_call_target in _UNWRITTEN:
        return Work()
    parts = list(touched(i, target))
    counted, moved = _arithmetic(i, target), sum(size for _, size in parts)
    across, in_products, others = 0, counted.depthwise, counted.operations
    if platform(target).pays_for_layout:
        across = min(_transposed(i), moved)
    else:
        in_products, others = 0, others + in_products
    return dataclasses.replace(
        counted, bytes=moved, kernels=1, transposed=across, depthwise=in_products,
        operations=others, exchanged=_exchanged(i), hosted=_hosted(i, parts),
    )  # fmt: skip


def run_work(
    computation: Computation, price: Callable[[Instruction], Work]
) -> dict[Instruction, Work]:
    """Instruction -> its work (bytes moved, operations) in one run of a computation that runs step
    by step; loops count all their iterations, of branches the one that moves most bytes counts.
    `price` gives an instruction's work by itself.
    """
    result = {}
    for i in computation.instructions:
        inside = [sum(run_work(c, price).values(), Work()) for c in i.called_control]
        if i.opcode == "conditional":
            result[i] = max(inside, key=lambda w: w.bytes)
        elif inside:
            result[i] = sum(inside, Work()) * trips(i)
        else:
            result[i] = price(i)
    return result


def trips(i: Instruction) -> int:
    """How often an instruction runs what it calls: a loop's trip count if known, or once."""
    known = trip_count(i) if i.opcode == "while" else None
    return 1 if known is None else known


def _array_bytes(i: Instruction) -> int:
    return sum(shape.bytes for _, shape in i.shape.indices() if not shape.is_tuple)


def touched(i: Instruction, target: str) -> Iterator[tuple[Array, int]]:
    """Yields (array, bytes of it that are moved) for all that an instruction reads or writes; those
    of one array are to be added, some are negative. Of an array updated in place only the part that
    changes counts; a result that nobody reads does not, where XLA takes it out of its fusion.
    """
    part, updated, read = own_part(i), {}, set()
    unread = _unread(i) if platform(target).trims_results else frozenset()
    if i.opcode in ("dynamic-update-slice", "fusion", "scatter"):
        for operand, inner, index in in_place_pairs(i, target):
            if (index, operand, inner) not in i.aliasing:  # bound results are written in full
                updated[operand] = index
    for number, operand in enumerate(i.operands):
        if operand in read or (part is not None and number not in part.operands):
            continue
        read.add(operand)
        if number in updated:
            if updated[number] in unread:
                continue
            whole = min(operand.shape.bytes, i.shape.at(updated[number]).bytes)
            yield (i, updated[number]), min(whole, _updated(i, updated[number])) - whole
        elif not operand.shape.is_tuple:
            yield (operand, ()), _read(i, number, operand)
        else:
            parts = operand.shape.indices()
            yield from (((operand, index), s.bytes) for index, s in parts if not s.is_tuple)
    for index, shape in i.shape.indices():
        if shape.is_tuple or index in unread:
            continue
        if part is None or index[0] in part.results:  # others are a transfer's, and only passed on
            yield (i, index), shape.bytes


def _hosted(i: Instruction, parts: list[tuple[Array, int]]) -> int:
    """Bytes, of the arrays that an instruction touches, that lie in the host's memory."""
    moved = sum(size for (of, index), size in parts if of.shape.at(index).is_host)
    # The start of a copy has its operand among its results as well.
    return min(moved, i.shape.at((0,)).bytes) if i.opcode == "copy-start" else moved


def _unread(i: Instruction) -> frozenset[ShapeIndex]:
    """Tuple indices of the results that nobody reads, of a fusion with several."""
    if i.opcode != "fusion" or not i.shape.is_tuple or i.is_root:
        return frozenset()
    if any(user.opcode != "get-tuple-element" for user in i.users):
        return frozenset()
    read = {user.tuple_index for user in i.users}
    return frozenset((k,) for k in range(len(i.shape.elements)) if k not in read)


def _exchanged(i: Instruction) -> int:
    """Bytes that a device sends to others in a collective; 0 for other instructions."""
    if i.opcode not in REPEATABLE:
        return 0
    given, made = sum(_array_bytes(o) for o in i.operands), _array_bytes(i)
    if i.opcode == "all-reduce":
        return 2 * given
    return {"all-gather": made - given, "reduce-scatter": given - made}.get(i.opcode, given)


def _read(i: Instruction, number: int, operand: Instruction) -> int:
    """Bytes that an instruction reads of its operand `number`, which is `operand`."""
    if i.opcode in _SLICES and number == 0:
        return _array_bytes(i)
    if i.opcode == "fusion":
        users = list(_readers(i.called[0].parameters[number]))
        if users and all(u.opcode in _SLICES for u in users):
            return min(sum(_array_bytes(u) for u in users), operand.shape.bytes)
    return _array_bytes(operand)


def _readers(i: Instruction) -> Iterator[Instruction]:
    """Yields the instructions that read a result, through bitcasts and inside fusions."""
    for user in i.users:
        if user.opcode == "bitcast" and not user.is_root:
            yield from _readers(user)
        elif user.opcode == "fusion":
            for number, operand in enumerate(user.operands):
                if operand is i:
                    yield from _readers(user.called[0].parameters[number])
        else:
            yield user


def _updated(i: Instruction, index: ShapeIndex) -> int:
    """Bytes that an instruction writes of its result at `index`, which is updated in place."""
    if i.opcode == "fusion":
        root = i.called[0].root
        assert root is not None
        i = root.operands[index[0]] if index and root.opcode == "tuple" else root
        i = i.behind("bitcast", "copy")
    parts = {"dynamic-update-slice": 1, "scatter": len(i.operands) - 1}
    return _array_bytes(i.operands[parts[i.opcode]] if i.opcode in parts else i)


def _transposed(i: Instruction) -> int:
    """Bytes of operands that an instruction reads in another order than they lie in memory."""
    if i.opcode != "fusion":
        return _array_bytes(i.operands[0]) if transposes(i) else 0
    across = (k for k in i.called[0].instructions if transposes(k))
    seen = set(after_needs(across, lambda k: k.operands))
    parameters = [k for k in i.called[0].parameters if k in seen]
    return sum(_read(i, k.parameter_number, i.operands[k.parameter_number]) for k in parameters)


def transposes(i: Instruction) -> bool:
    """Whether a CPU must read the operand of a copy or transpose across its layout."""
    if i.opcode not in ("copy", "transpose") or i.shape.is_tuple:
        return False
    source = i.operands[0].shape
    inner = [d for d in i.shape.minor_to_major if i.shape.dimensions[d] > 1]
    before = [d for d in source.minor_to_major if source.dimensions[d] > 1]
    if len(inner) < 2 or len(before) != len(inner):
        return False
    return (i.dimensions[inner[0]] if i.opcode == "transpose" else inner[0]) != before[0]


def _arithmetic(i: Instruction, target: str) -> Work:
    """The Work of what an instruction, or all in its fusion, computes; it leaves bytes at 0."""
    if i.opcode == "fusion":
        inside = [_arithmetic(k, target) for k in i.called[0].instructions]
        counted = [_figures(w) for w in inside if w is not _NOTHING]
        return Work(*map(sum, zip(*counted, strict=True))) if counted else _NOTHING
    if i.opcode in ("dot", "convolution", "custom-call"):
        windowed = i.opcode == "convolution" and not platform(target).has_dots
        count = 2 * convolution.multiply_adds(i) if windowed else _matrix(i)
        if _is_depthwise(i):
            return Work(depthwise=count)
        is_narrow = count and all(o.shape.element_bits <= 16 for o in i.operands[:2])
        return Work(narrow=count) if is_narrow else Work(matrix=count)
    if i.opcode in _NO_ARITHMETIC:
        return _NOTHING
    if i.opcode in _TRANSCENDENTAL:
        return Work(transcendentals=i.shape.num_elements)
    if i.opcode == "fft":
        return Work(operations=_transform(i))
    if i.opcode in ("reduce", "reduce-window", "select-and-scatter", "scatter", "sort"):
        return Work(operations=max((o.shape.num_elements for o in i.operands), default=0))
    return Work(operations=i.shape.num_elements * _SEVERAL.get(i.opcode, 1))


def _matrix(i: Instruction) -> int:
    result = i.shape.elements[0] if i.shape.elements else i.shape
    if "conv" in i.custom_call_target.lower() or i.opcode == "convolution":
        return _convolution(i)
    if i.opcode == "dot":
        contracting = i.contracting
    elif "gemm" in i.custom_call_target or "matmul" in i.custom_call_target:
        contracting = _gemm_contracting(i)
    else:
        return 0
    summed = 1
    for dimension in contracting:
        summed *= i.operands[0].shape.dimensions[dimension]
    return 2 * result.num_elements * summed


def _convolution(i: Instruction) -> int:
    """Operations of a convolution or gradient: 2 |activations out| |kernel| / output features."""
    result = i.shape.elements[0] if i.shape.elements else i.shape
    first, second = i.operands[0].shape, i.operands[1].shape
    if "BackwardFilter" in i.custom_call_target:
        activations, kernel = second, result
    elif "BackwardInput" in i.custom_call_target:
        activations, kernel = first, second
    else:
        activations, kernel = result, second
    features = kernel.dimensions[i.kernel_features[1]]
    return 2 * activations.num_elements * kernel.num_elements // max(features, 1)


def _is_depthwise(i: Instruction) -> bool:
    """Whether each output feature of a convolution sees one input feature: no matrix product."""
    # At batch size 1 a gradient of weights has one input feature too, and is a matrix product.
    if i.feature_groups == 1 or not ("conv" in i.custom_call_target or i.opcode == "convolution"):
        return False
    result = i.shape.elements[0] if i.shape.elements else i.shape
    kernel = result if "BackwardFilter" in i.custom_call_target else i.operands[1].shape
    return kernel.dimensions[i.kernel_features[0]] == 1


def _transform(i: Instruction) -> int:
    """Operations of an fft: 5 n log2 n of each transform of n elements, half if these are real
    (Frigo, Johnson, "The Design and Implementation of FFTW3", Proceedings of the IEEE 2005).
    """
    assert i.proto is not None
    shapes = (i.operands[0].shape, i.shape)
    real = min(s.element_bits for s in shapes) < max(s.element_bits for s in shapes)
    elements = max(s.num_elements for s in shapes)
    return round(elements * 5 * math.log2(math.prod(i.proto.fft_length)) / (1 + real))


def _gemm_contracting(i: Instruction) -> tuple[int, ...]:
    """Dimensions of the first operand that a library's product sums over; the last if not told."""
    try:
        config = json.loads(i.backend_config)
        numbers = config["gemm_backend_config"]["dot_dimension_numbers"]
        return tuple(int(k) for k in numbers["lhs_contracting_dimensions"])
    except (ValueError, KeyError, TypeError):
        return (len(i.operands[0].shape.dimensions) - 1,)

"""When an operation may write a result over an operand that it reads, by XLA's definitions.

An operation may if it reads each element of the operand before it writes the result's element at
the same address. That holds where every path from the operand to a result is elementwise; beyond
these XLA has exceptions (updates of slices, scatter, sort, reductions that end before anything
is written). The sources are HloDataflowAnalysis::CanShareOperandBufferWithUser, AliasInfo and, for
fusions on GPU, GpuAliasInfo.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo.shapes import Shape, ShapeIndex, cut_dimensions
from hlo.wire import scalar_integer
from olla_xla.check.executable.program import Body, Op, may_repeat

_ELEMENTWISE = frozenset(
    "abs acos acosh add and asin asinh atan atan2 atanh bitcast-convert cbrt ceil clamp compare "
    "complex convert cosh cosine count-leading-zeros divide erf exponential exponential-minus-one "
    "floor imag is-finite log log-plus-one logistic map maximum minimum multiply negate not or "
    "popcnt power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt "
    "select shift-left shift-right-arithmetic shift-right-logical sign sine sinh sqrt "
    "stochastic-convert subtract tan tanh xor".split()
)
"""Opcodes whose result at an index depends on the operands at that index alone."""

_ITEMWISE_COLLECTIVES = frozenset("all-reduce all-reduce-start collective-broadcast".split())
"""Collectives that may be done in place, but on a CPU, where a device reads another's operand."""

Pair = tuple[ShapeIndex, int, ShapeIndex]
"""(index of the result, operand number, index within the operand)."""


def must_share(op: Op, target: str) -> list[Pair]:
    """(result index, operand number, index in it) of what XLA must put into one buffer; none of
    while, conditional and call instructions.
    """
    if op.opcode == "fusion":
        return [*_updates(op, target), *op.bound]
    if op.opcode in ("custom-call", "async-start"):
        return list(op.bound)
    if op.opcode == "dynamic-update-slice" or op.opcode == "set-dimension-size":
        return [((), 0, ())]
    reduces = target != "cpu" and op.opcode in ("all-reduce", "all-reduce-start")
    if reduces or op.opcode == "scatter":
        count = len(op.shape.elements) if op.shape.is_tuple else 1
        return [((), 0, ())] if count == 1 else [((k,), k, ()) for k in range(count)]
    if op.opcode == "ragged-all-to-all":
        return [((), 1, ())]
    return []


def _updates(fusion: Op, target: str) -> list[Pair]:
    """(result index, operand number, index in it) of operands that a fusion updates in place."""
    root = fusion.called[0].result
    pairs = []
    for index, shape in fusion.shape.indices():
        if shape.is_tuple:
            continue
        writer, at = _origin(root, index, target)
        for result, number, inner in must_share(writer, target):
            if result != at:
                continue
            source, within = _origin(writer.operands[number], inner, target)
            if source.opcode == "fusion":  # one nested in this one, that passes an update on
                for again, nested, deeper in must_share(source, target):
                    if again == within:
                        source, within = _origin(source.operands[nested], deeper, target)
                        break
            if source.opcode == "parameter":
                pairs.append((index, source.proto.parameter_number, within))
    return pairs


def _origin(op: Op, index: ShapeIndex, target: str) -> tuple[Op, ShapeIndex]:
    """The operation, and its result's index, that makes a value: behind tuples and bitcasts."""
    still = _still(target)
    while True:
        if op.opcode == "tuple" and index:
            op, index = op.operands[index[0]], index[1:]
        elif op.opcode == "get-tuple-element":
            op, index = op.operands[0], (op.proto.tuple_index, *index)
        elif op.opcode in still and not index:
            op = op.operands[0]
        else:
            return op, index


def may_overwrite(op: Op, result: ShapeIndex, numbers: list[int], target: str) -> bool:
    """Whether `op` may write `result` over operands that it reads, by XLA's in-place rules.

    True for those that run computations step by step, as these are checked instead. `result`: index
    of the result. `numbers`: every operand number by which `op` reads the value to be overwritten.
    `target`: "cpu", "cuda" or "tpu".
    """
    if op.opcode == "fusion":
        return _fusion_may(op, result, numbers, target)
    if op.opcode in ("while", "conditional", "call", "async-start"):
        return True  # what they call is followed step by step
    if op.opcode in ("dynamic-update-slice", "set-dimension-size"):
        return numbers == [0]
    if op.opcode == "triangular-solve":
        return numbers == [1]
    itemwise = target != "cpu" and op.opcode in _ITEMWISE_COLLECTIVES
    if itemwise or op.opcode in ("scatter", "sort"):
        return numbers == ([result[0]] if result else [0])
    if op.opcode == "ragged-all-to-all":
        return numbers == [1]
    if op.opcode == "custom-call":
        return _call_may(op, result, numbers, target)
    if op.opcode == "copy":
        return _same_layout(op.shape, op.operands[0].shape)
    if op.shape.is_tuple:
        return False
    return all(
        _elementwise(op, k) and _same_layout(op.shape, op.operands[k].shape) for k in numbers
    )


def _call_may(op: Op, result: ShapeIndex, numbers: list[int], target: str) -> bool:
    if any(index == result and numbers == [k] for index, k, _ in op.bound):
        return True
    bias = op.proto.custom_call_target == "__cublas$lt$matmul" and result in ((), (0,))
    solved = op.proto.custom_call_target == "__cusolver$cholesky" and result in ((), (0,))
    return target == "cuda" and ((bias and numbers == [2]) or (solved and numbers == [0]))


def _elementwise(op: Op, number: int) -> bool:
    """Whether `op`'s result at each index depends on operand `number` at that index alone."""
    if op.opcode == "dynamic-update-slice":
        return number == 0
    if op.opcode == "bitcast-convert":
        return op.shape.element_bits == op.operands[0].shape.element_bits
    return op.opcode in _ELEMENTWISE


def _fusion_may(fusion: Op, result: ShapeIndex, numbers: list[int], target: str) -> bool:
    if any(index == result and numbers == [k] for index, k, _ in _updates(fusion, target)):
        return target == "tpu" or _reads_where_it_writes(fusion.called[0], numbers[0], target)
    body = fusion.called[0]
    if target == "tpu" and _exchanges(body):
        # A fusion of XLA's with a part of a collective beside other work: it passes its arrays on,
        # and writes only memory of its own.
        return any(index == result and numbers == [k] for index, k, _ in fusion.bound)
    kind = fusion.proto.fusion_kind
    if kind == "kOutput" and _adds_to_product(body, numbers):
        return True
    reached = _Paths(body, result, target, kind).reached(numbers)
    if reached is None:
        return False
    outputs = [op for op in _outputs(body) if op in reached]
    if len(outputs) < 2:
        return True
    # A GPU's emitter visits the elements in another order where a result is itself a transpose.
    heroes = body.ops if target == "cpu" else [_hero(op) for op in outputs]
    return not any(_transposes(op) for op in heroes)


def _reads_where_it_writes(body: Body, number: int, target: str) -> bool:
    """Whether a fusion that updates parameter `number` reads elements at most where it writes them.

    XLA's kernels write an update in place if each operation that depends on the parameter is
    elementwise, or takes the slice that is written by the same indices
    (CanEmitFusedDynamicUpdateSliceInPlace). ShouldFuseInPlaceOp fuses other operations too, if an
    elementwise one is between them and the parameter. Then one thread computes an element of the
    update; it may sum over the slices, of which one is written, as others read none of its elements
    there.
    """
    writers = {op for op in body.ops if op.opcode in ("dynamic-update-slice", "scatter")}
    updates = [op.operands for op in writers if op.opcode == "dynamic-update-slice"]
    written = [(_starts(update[2:]), update[1].shape.dimensions) for update in updates]
    parameter = body.parameters[number]
    queue, reached = [(parameter, False)], {parameter}
    while queue:
        current, sliced = queue.pop()
        for user, k in body.users.get(current, ()):
            if user in writers:  # what reads its result reads what the kernel has written
                if k and not sliced:
                    return False
                continue
            if user.opcode == "reduce" and not k and _sums_slices(user, current, body, writers):
                continue
            slices = user.opcode == "slice" or (user.opcode == "dynamic-slice" and k == 0)
            if slices:
                taken = user.proto.slice_dimensions
                starts = [d.start for d in taken] if taken else _starts(user.operands[1:])
                if sliced or (starts, user.shape.dimensions) not in written:
                    return False
            elif user.opcode not in ("tuple", "get-tuple-element", "fusion", *_still(target)):
                if not _elementwise(user, k):
                    return False
            if user not in reached:
                reached.add(user)
                queue.append((user, sliced or slices))
    return True


def _sums_slices(reduce: Op, current: Op, body: Body, writers: set[Op]) -> bool:
    """Whether a reduce over all slices of an array is used only to update one of them."""
    queue = [reduce]
    while queue:
        op = queue.pop()
        for user, k in body.users.get(op, ()):
            if user in writers and k == 1:
                part, whole = user.operands[1].shape, user.operands[0].shape
                cut = cut_dimensions(part.dimensions, whole.dimensions)
                same = _same_layout(current.shape, whole) and cut == list(reduce.proto.dimensions)
                if not same or any(part.dimensions[d] != 1 for d in cut):
                    return False
            elif user.opcode in ("bitcast", "reshape") or _elementwise(user, k):
                without = [[n for n in o.shape.dimensions if n != 1] for o in (op, user)]
                if without[0] != without[1] or user in writers:
                    return False
                queue.append(user)
            else:
                return False
    return True


def _starts(ops: Sequence[Op]) -> list[Op | int | None]:
    """Start indices of a slice: the operation that computes each, or a constant's value."""
    return [
        scalar_integer(op.proto.literal, op.proto.shape.element_type)
        if op.opcode == "constant"
        else op
        for op in ops
    ]


def _still(target: str) -> tuple[str, ...]:
    """Opcodes of operations whose result is their operand, at the same place in memory."""
    return ("bitcast", "reshape") if target == "cuda" else ("bitcast",)


def _exchanges(body: Body) -> bool:
    """Whether a fusion runs a collective, or a part of one."""
    return any(may_repeat(op) for op in body.ops)


def _outputs(body: Body) -> tuple[Op, ...]:
    root = body.result
    return root.operands if root.opcode == "tuple" else (root,)


def _hero(op: Op) -> Op:
    """The operation behind bitcasts, reshapes and unary elementwise operations (XLA's hero)."""
    while op.opcode in ("bitcast", "reshape") or (
        op.opcode in _ELEMENTWISE and len(op.operands) == 1
    ):
        op = op.operands[0]
    return op


def _transposes(op: Op) -> bool:
    """Whether an operation is a transpose or a copy to another layout."""
    if op.opcode == "copy":
        return not _same_layout(op.shape, op.operands[0].shape)
    return op.opcode == "transpose"


def _adds_to_product(body: Body, numbers: list[int]) -> bool:
    """Whether the root adds the only parameter in `numbers`, used once, to a dot or convolution."""
    root = body.result
    if root.opcode != "add" or len(numbers) != 1:
        return False
    parameter = body.parameters[numbers[0]]
    uses = [(op, k) for op in body.ops for k, o in enumerate(op.operands) if o is parameter]
    product = [k for k, o in enumerate(root.operands) if o.opcode in ("dot", "convolution")]
    return bool(product) and uses == [(root, 1 - product[0])]


class _Paths:
    """The operations of a fusion that depend on parameters, as long as all are elementwise."""

    def __init__(self, body: Body, result: ShapeIndex, target: str, kind: str) -> None:
        self._body = body
        self._result = result
        self._target = target
        self._reduces = target == "tpu" or (target == "cuda" and kind == "kInput")
        root = body.result
        output = root.operands[result[0]] if result and root.opcode == "tuple" else root
        self._writer = output.operands[0] if output.opcode == "bitcast" else output

    def reached(self, numbers: list[int]) -> set[Op] | None:
        """The parameters `numbers` and what depends on them; None if an operation moves elements.

        What depends on them through a reduction that ends before results are written is left out.
        A copy may change the layout and a later one restore it: only the elements' positions in the
        parameter and in the result must agree.
        """
        starts = [self._body.parameters[k] for k in numbers]
        places: dict[Op, Shape] = {op: op.shape for op in starts}
        queue = list(places)
        while queue:
            current = queue.pop()
            for user, number in self._body.users.get(current, ()):
                if self._reduces and user.opcode == "reduce":
                    # A GPU reads all before it writes results; a TPU reads what a tile of them is
                    # made of before it writes the tile.
                    continue
                lie = self._lie(current, places[current], user, number)
                if lie is None:
                    return None
                if user not in places:
                    places[user] = lie
                    queue.append(user)
                elif not user.shape.is_tuple and not _same_layout(places[user], lie):
                    return None
        for op in _outputs(self._body):
            if op in places and not op.shape.is_tuple and not _same_layout(op.shape, places[op]):
                return None
        return set(places)

    def _lie(self, current: Op, places: Shape, user: Op, number: int) -> Shape | None:
        """The layout that puts `user`'s elements where the parameter's, which they come from, lie.

        None where `user` reads `current` at other positions than those of its own elements.
        `current`: what `user` reads as operand `number`. `places`: such a layout of `current`.
        """
        if user.opcode in ("tuple", "get-tuple-element"):
            return places
        is_copy = user.opcode == "copy" and self._target == "cpu"
        if is_copy or (_elementwise(user, number) and user.opcode != "dynamic-update-slice"):
            same = user.shape.dimensions == current.shape.dimensions
            return places if same and (is_copy or _same_layout(user.shape, current.shape)) else None
        if not _same_layout(current.shape, places) or not self._keeps(current, user, number):
            return None
        return user.shape

    def _keeps(self, current: Op, user: Op, number: int) -> bool:
        """Whether `user` reads `current` only at the addresses where its own result will be."""
        if user.opcode == "bitcast" or (user.opcode == "reshape" and self._target == "cuda"):
            return user.shape.element_bits == current.shape.element_bits
        if user.opcode == "copy":
            return _same_layout(user.shape, current.shape)
        if user.opcode == "fusion":
            return may_overwrite(user, (), [number], self._target)
        if user is self._writer and user.opcode == "scatter":
            return number < max(len(user.shape.elements), 1) and user.operands.count(current) == 1
        if user is self._writer and user.opcode == "sort":
            return self._result == (number,)
        if user.opcode == "dynamic-update-slice" and number == 1:
            # A TPU writes a fusion's results tile by tile, all of one tile before the next: so XLA
            # puts a state over the one that both it and the slice written are made of.
            return user is self._writer or (self._target == "tpu" and user in _outputs(self._body))
        if user.opcode == "dynamic-slice" and self._writer.opcode == "dynamic-update-slice":
            return _same_slice(user, self._writer)
        is_update = user.opcode == "dynamic-update-slice" and number == 0
        return is_update and _same_layout(user.shape, current.shape)


def _same_layout(a: Shape, b: Shape) -> bool:
    """Whether equal indices are at equal offsets; dimensions of extent 1 do not matter."""
    if a.dimensions != b.dimensions:
        return False
    return [d for d in a.minor_to_major if a.dimensions[d] > 1] == [
        d for d in b.minor_to_major if b.dimensions[d] > 1
    ]


def _same_slice(read: Op, write: Op) -> bool:
    """Whether `read`, a dynamic-slice, takes the part of an array that `write` replaces."""
    if write.operands[0] is not read.operands[0] or not _equal(read.shape, write.operands[1].shape):
        return False
    return read.shape.num_elements == 1 or read.operands[1:] == write.operands[2:]


def _equal(a: Shape, b: Shape) -> bool:
    return a.dimensions == b.dimensions and a.element_type == b.element_type

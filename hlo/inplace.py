"""In-place rules: which operand an instruction must, or may, overwrite with its result.

`in_place_pairs` is XLA's AliasInfo::GetInPlaceInputOutputPairs (the result must have the operand's
buffer); `can_share` is HloDataflowAnalysis::CanShareOperandBufferWithUser (the result may take a
dying operand's buffer), with the extra rule of the GPU backend for fusions.
"""

from collections.abc import Sequence

from hlo.backend import platform
from hlo.module import Computation, Instruction
from hlo.shapes import ShapeIndex

Pair = tuple[int, ShapeIndex, ShapeIndex]
"""(operand number, index within the operand, index within the result)."""

_DEFAULT_IN_PLACE = ("dynamic-update-slice", "scatter", "all-reduce", "all-reduce-start")

_ELEMENTWISE = frozenset(
    "constant iota abs round-nearest-afz round-nearest-even ceil count-leading-zeros convert "
    "bitcast-convert copy cosine erf exponential exponential-minus-one floor imag is-finite log "
    "log-plus-one not negate popcnt real reduce-precision rsqrt sign sine sqrt cbrt tan tanh "
    "logistic add atan2 compare complex divide maximum minimum multiply power remainder subtract "
    "and or xor shift-left shift-right-arithmetic shift-right-logical stochastic-convert clamp "
    "select map acos acosh asin asinh atanh cosh sinh".split()
)


def in_place_pairs(i: Instruction, target: str) -> list[Pair]:
    """Lists where XLA's rules put a result of `i` into the buffer of one of its operands.
    Each is (operand number, index within the operand, index within the result).
    """
    if i.opcode in _DEFAULT_IN_PLACE:
        aside = i.opcode == "all-reduce" and not platform(target).all_reduces_in_place
        return [] if aside else _default_pairs(i)
    if i.opcode in ("custom-call", "async-start"):
        return [(operand, inner, index) for index, operand, inner in i.aliasing]
    if i.opcode == "fusion":
        pairs = _fusion_pairs(i, target)
        return pairs + [(operand, inner, index) for index, operand, inner in i.aliasing]
    if i.opcode == "set-dimension-size":
        return [(0, (), ())]
    if i.opcode == "ragged-all-to-all":
        return [(1, (), ())]
    return []


def _default_pairs(i: Instruction) -> list[Pair]:
    count = len(i.operands)
    if i.opcode == "dynamic-update-slice":
        count = 1
    elif i.opcode == "scatter":
        count = len(i.shape.elements) or 1
    if count == 1:
        return [(0, (), ())]
    return [(k, (), (k,)) for k in range(count)]


def _fusion_pairs(fusion: Instruction, target: str) -> list[Pair]:
    root = fusion.called[0].root
    assert root is not None
    pairs: list[Pair] = []
    for index, shape in fusion.shape.indices():
        if shape.is_tuple:
            continue
        source, source_index = _follow(root, index, target)
        for operand, inner, output in in_place_pairs(source, target):
            if output != source_index:
                continue
            origin, origin_index = _follow(source.operands[operand], inner, target)
            if origin.opcode == "fusion":
                for nested, nested_inner, nested_output in in_place_pairs(origin, target):
                    if nested_output == origin_index:
                        origin, origin_index = _follow(
                            origin.operands[nested], nested_inner, target
                        )
                        break
            if origin.opcode == "parameter":
                pairs.append((origin.parameter_number, origin_index, index))
    return pairs


def _follow(i: Instruction, index: ShapeIndex, target: str) -> tuple[Instruction, ShapeIndex]:
    """Follows a value back to the (instruction, shape index) that computes it.
    Skips tuples, get-tuple-elements and opcodes of `Platform.moves_nothing`.
    """
    while i.opcode == "tuple" and index:
        i, index = i.operands[index[0]], index[1:]
    while i.opcode == "get-tuple-element":
        i, index = i.operands[0], (i.tuple_index, *index)
    no_ops = platform(target).moves_nothing
    while not index and i.opcode in no_ops:
        i = i.operands[0]
    return i, index


def is_elementwise_on(i: Instruction, operand: int) -> bool:
    """Whether `i` reads an operand element by element (HloInstruction::IsElementwiseOnOperand)."""
    if i.opcode == "dynamic-update-slice":
        return operand == 0
    if i.opcode == "bitcast-convert":
        return i.shape.element_bits == i.operands[0].shape.element_bits
    if i.opcode == "fusion":
        return _uses_elementwise(i.called[0].parameters[operand])
    return i.opcode in _ELEMENTWISE


def _uses_elementwise(parameter: Instruction) -> bool:
    """Whether every transitive use of a fusion's parameter is elementwise, or a tuple."""
    return parameter in _elementwise_down(parameter.computation)


def _elementwise_down(body: Computation) -> frozenset[Instruction]:
    """Returns the instructions of which every transitive use is elementwise, or a tuple."""
    if body.elementwise_down is not None:
        return body.elementwise_down
    result: set[Instruction] = set()
    for i in reversed(body.instructions):  # users come after what they use
        if all(user in result and _uses_so(user, i) for user in i.users):
            result.add(i)
    body.elementwise_down = frozenset(result)
    return body.elementwise_down


def _uses_so(user: Instruction, used: Instruction) -> bool:
    """Whether `user` is a tuple, or elementwise on each of its operands that is `used`."""
    if user.opcode == "tuple":
        return True
    return all(is_elementwise_on(user, k) for k, o in enumerate(user.operands) if o is used)


def can_share(
    operand: Instruction,
    operand_index: ShapeIndex,
    user: Instruction,
    user_index: ShapeIndex,
    target: str,
    pairs: Sequence[Pair],
) -> bool:
    """Whether `user`'s result at `user_index` may overwrite `operand` at `operand_index`.
    Assumes that nothing reads the operand later; `pairs` are the `in_place_pairs` of `user`.
    """
    if user.custom_call_target.startswith("__cublas$lt$matmul") and user_index == (1,):
        return False
    if operand.opcode == "constant":
        return False
    equal = operand.shape.at(operand_index).key == user.shape.at(user_index).key
    if equal:
        for number, inner, index in pairs:
            if index == user_index and inner == operand_index and user.operands[number] is operand:
                return True
    if user.opcode == "fusion" and platform(target).has_fusion_rule:
        return _gpu_fusion_shares(operand, user, user_index)
    if not equal:
        return False
    if user.opcode == "fusion":
        return _fusion_shares(operand, user)
    return _instruction_shares(operand, user, user_index)


def _fusion_shares(operand: Instruction, user: Instruction) -> bool:
    parameter = user.called[0].parameters[user.operands.index(operand)]
    if user.fusion_kind in ("kLoop", "kInput"):
        return _uses_elementwise(parameter)
    root = user.called[0].root
    assert root is not None
    if user.fusion_kind == "kOutput" and root.opcode == "add":
        for k, matched in enumerate(root.operands):
            if matched.opcode in ("convolution", "dot"):
                return parameter.users == [root] and root.operands[1 - k] is parameter
        return False
    return is_elementwise_on(user, user.operands.index(operand))


def _instruction_shares(operand: Instruction, user: Instruction, user_index: ShapeIndex) -> bool:
    numbers = [k for k, o in enumerate(user.operands) if o is operand]
    if user.opcode in ("while", "conditional"):
        return True
    if user.opcode in ("dynamic-update-slice", "scatter", "set-dimension-size"):
        return numbers == [0]
    if user.opcode == "triangular-solve":
        return numbers == [1]
    if user.opcode == "sort":
        if len(operand.users) != 1:
            return False
        return len(user.operands) == 1 or numbers == [user_index[0]]
    if user.opcode == "call":
        return False  # shared through the callee's own instructions, where it is allowed
    return is_elementwise_on(user, numbers[0])


def _gpu_fusion_shares(operand: Instruction, fusion: Instruction, index: ShapeIndex) -> bool:
    """Whether a GPU fusion's result may overwrite an operand: XLA's FusionCanShareBufferHint."""
    a, b = operand.shape, fusion.shape.at(index)
    if a.key != b.key and not (
        a.is_array
        and b.is_array
        and a.num_elements == b.num_elements
        and a.element_bits == b.element_bits
    ):
        return False
    body = fusion.called[0]
    root = body.root
    assert root is not None
    roots = root.operands if root.opcode == "tuple" else (root,)
    output = root.operands[index[0]] if index and root.opcode == "tuple" else root
    source = output.operands[0] if output.opcode == "bitcast" else output
    hero = _reduction_hero(fusion, roots)
    start = body.parameters[fusion.operands.index(operand)]
    visited = _plainly_reached(start, hero)
    if visited is None and source.opcode in _SPECIAL:
        visited = _walk_gpu(start, source, hero, index)
    if visited is None or output not in visited:
        return False
    others = [r for r in roots if r in visited and r is not output]
    if others:
        transposed = any(_hero_of(r).opcode in ("transpose", "copy") for r in roots if r in visited)
        if source.opcode not in _ELEMENTWISE or transposed:
            return False
    return True


_SPECIAL = ("scatter", "sort", "dynamic-update-slice")
"""Where a result is one of these, more steps towards it are allowed than towards others."""


def _plainly_reached(start: Instruction, hero: Instruction | None) -> set[Instruction] | None:
    """Finds a parameter and what depends on it; None if some step may reorder its elements.
    That is `_walk_gpu`, cached, for results that are not of `_SPECIAL` (such as a scatter).
    """
    known = start.computation.reached
    if (start, hero) not in known:
        known[start, hero] = _walk_gpu(start, None, hero, ())
    return known[start, hero]


def _walk_gpu(
    start: Instruction, source: Instruction | None, hero: Instruction | None, index: ShapeIndex
) -> set[Instruction] | None:
    """Finds a parameter and what depends on it; None if some step may reorder its elements.
    `source` is the result's instruction, below a bitcast, if one of `_SPECIAL`; else None. The walk
    ends at `hero`, the fusion's reduce; `index` is the result's.
    """
    visited = {start}
    queue = [start]
    while queue:
        current = queue.pop()
        if current is hero:
            continue
        for user in current.users:
            if user not in visited:
                visited.add(user)
                queue.append(user)
            if not _gpu_step_allowed(current, user, source, hero, index):
                return None
    return visited


def _gpu_step_allowed(
    current: Instruction,
    user: Instruction,
    source: Instruction | None,
    hero: Instruction | None,
    index: ShapeIndex,
) -> bool:
    numbers = [k for k, o in enumerate(user.operands) if o is current]
    if user is source and user.opcode == "scatter" and len(numbers) == 1:
        if numbers[0] < (len(user.shape.elements) or 1):
            return True
    if user is source and user.opcode == "sort" and len(numbers) == 1:
        return index == (numbers[0],)
    if (
        source is not None
        and source.opcode == "dynamic-update-slice"
        and user.opcode == "dynamic-slice"
        and source.operands[0] is user.operands[0]
        and user.shape.key == source.operands[1].shape.key
    ):
        return user.shape.num_elements == 1 or user.operands[1:] == source.operands[2:]
    if user.opcode in ("bitcast", "tuple") or user is hero:
        return True
    if is_elementwise_on(user, numbers[0]) and user.opcode != "copy":
        return True
    return user is source and user.opcode == "dynamic-update-slice" and numbers[0] == 1


def _hero_of(root: Instruction) -> Instruction:
    while root.opcode in ("bitcast", "reshape") or (
        root.opcode in _ELEMENTWISE and len(root.operands) == 1 and root.opcode != "copy"
    ):
        root = root.operands[0]
    return root


def _reduction_hero(fusion: Instruction, roots: tuple[Instruction, ...]) -> Instruction | None:
    if fusion.fusion_kind != "kInput":
        return None
    for root in roots:
        hero = _hero_of(root)
        if hero.opcode == "reduce":
            return hero
    return None

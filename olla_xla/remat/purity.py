"""Which instructions may be computed once more: the same inputs must give the same bits again."""

from collections.abc import Sequence

from hlo.backend import platform
from hlo.exchange import REPEATABLE
from hlo.inplace import in_place_pairs
from hlo.module import Computation, Instruction
from hlo.trip_count import trip_count

FORWARDING = frozenset({"bitcast", "get-tuple-element"})
"""Opcodes that pass their operand on without touching memory: clones of them cost nothing."""

_PURE = frozenset(
    "abs acos acosh add and asin asinh atan2 atanh bitcast bitcast-convert broadcast cbrt ceil "
    "clamp compare complex concatenate constant convert convolution copy cosh cosine "
    "count-leading-zeros divide dot dynamic-slice dynamic-update-slice erf exponential "
    "exponential-minus-one fft floor gather get-tuple-element imag iota is-finite log log-plus-one "
    "logistic map maximum minimum multiply negate not or pad parameter partition-id popcnt power "
    "real reduce reduce-precision reduce-window remainder reshape reverse round-nearest-afz "
    "round-nearest-even rsqrt select shift-left shift-right-arithmetic shift-right-logical sign "
    "sine sinh slice sqrt subtract tan tanh transpose tuple xor".split()
)
# An fft of one shape is one plan of DUCC or cuFFT, which runs the same code each time.
# Left out on purpose: random numbers, collectives, sends, infeed, outfeed, control flow, copies to
# the host; scatter and select-and-scatter, whose sums a GPU takes in any order; and custom calls.

_PURE_CALLS = frozenset(
    "__cublas$gemm __cublas$lt$matmul __cudnn$convBiasActivationForward __cudnn$convForward".split()
)
"""Library calls that give the same bits every time: cuBLAS products on one stream (cuBLAS guide,
"Results Reproducibility"), cuDNN's forward convolutions (cuDNN guide, "Reproducibility"; the
backward ones may sum by atomics)."""

_ALONE = _PURE - frozenset("bitcast constant get-tuple-element parameter tuple".split())
"""Opcodes of `_PURE` that are worth computing again outside a fusion."""

_HANDING = _PURE - _ALONE | {"async-update", "async-done"}
"""Opcodes that only hand on what there is, or what another instruction gives."""


def recomputable(i: Instruction, target: str) -> bool:
    """Whether a second run of an instruction gives the same bits and has no other effect.

    Refused are random state, side effects, collectives, host transfers, control flow, custom calls
    that are not known to be pure, updates of an operand in place, and instructions with control
    predecessors. On a CPU and a TPU, so are those of several results: a clone that keeps only some
    of them is other code, which may round otherwise. The caller excludes what is itself a control
    predecessor.

    Args:
      i: of a computation that runs step by step. target: "cpu", "cuda" or "tpu".
    """
    if not pure(i) or i.is_root or i.control_predecessors:
        return False
    if any(o.shape.is_tuple for o in i.operands):
        return False
    if i.shape.is_tuple and platform(target).keeps_results:
        return False
    return not in_place_pairs(i, target)


def pure(i: Instruction) -> bool:
    """Whether an instruction is known to give the same bits whenever it runs, and has no other
    effect. False for what only hands values on, as bitcasts, constants and tuples, and for what
    reads or writes other memory than the device's default one, as the host's.
    """
    if i.opcode == "fusion":
        if i.fusion_kind == "" or not all(_pure_body(c) for c in i.called):
            return False
    elif i.opcode == "custom-call":
        if i.custom_call_target not in _PURE_CALLS:
            return False
    elif i.opcode not in _ALONE or not all(_pure_body(c) for c in i.called):
        return False
    return not i.side_effect and not _on_host(i)


def pure_but_for_transfer(fusion: Instruction) -> bool:
    """Whether a TPU fusion would be pure without the parts of a transfer that it also runs."""
    return _all_pure([i for i in fusion.called[0].instructions if i.opcode not in REPEATABLE])


CONTROL = ("conditional", "while")
"""Opcodes of what runs computations step by step."""


def control_repeats(i: Instruction) -> bool:
    """Whether a branch or loop gives the same bits whenever it runs, and has no other effect. Of a
    loop it must be known how often it runs, which is its price.
    """
    if i.opcode == "while" and trip_count(i) is None:
        return False
    return not i.side_effect and not _on_host(i) and all(map(_steps_repeat, i.called))


def _steps_repeat(computation: Computation) -> bool:
    """Whether a computation that runs step by step gives the same bits whenever it runs."""
    return all(
        k.opcode in _HANDING
        or pure(k)
        or (k.opcode in CONTROL and control_repeats(k))
        or (k.opcode == "async-start" and all(map(_steps_repeat, k.called)))
        for k in computation.instructions
    )


def repeats(i: Instruction) -> bool:
    """Whether copies of an instruction, fused or not, give equal bits for equal operands."""
    if i.opcode == "custom-call":
        return pure(i)
    return i.opcode in _PURE and not i.side_effect and all(_pure_body(c) for c in i.called)


def _pure_body(computation: Computation) -> bool:
    return _all_pure(computation.instructions)


def _all_pure(instructions: Sequence[Instruction]) -> bool:
    return all(
        (k.opcode == "fusion" or k.opcode in _PURE) and all(_pure_body(c) for c in k.called)
        for k in instructions
    )


def _on_host(i: Instruction) -> bool:
    shapes = [shape for k in (i, *i.operands) for _, shape in k.shape.indices()]
    return any(shape.memory_space for shape in shapes)

"""Which of XLA:CPU's code generators compiles a fusion; they may round differently.

The first makes tiles: of elementwise operators, and of moves of elements that can be tiled. All
others become loops; a concatenation at the end becomes one loop for each operand. LLVM rounds a
product and a sum once or twice, depending on the code. (XLA's
backends/cpu/codegen/fusion_emitter.cc and tiled/tiled_fusion_emitter.cc; the names of the kernels
of jaxlib 0.12.0.1 agree.)
"""

import enum

from hlo.module import Computation, Instruction, Module
from hlo.walk import after_needs

TILED = frozenset(
    "parameter abs add and atan2 cbrt ceil clamp compare convert cosine divide erf exponential "
    "exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum multiply "
    "negate not or power remainder rsqrt select sine sqrt subtract tan tanh xor".split()
)
_LOOPED = frozenset(
    "broadcast concatenate convolution dot dynamic-slice dynamic-update-slice gather pad reduce "
    "reduce-window reverse scatter select-and-scatter slice".split()
)
_TYPES = frozenset({1, 2, 3, 4, 5, 10, 11, 12, 16})
"""pred, s8 to s64, f16, f32, f64, bf16."""


class CodeGenerator(enum.Enum):
    """How XLA:CPU compiles a fusion, which can change how results round.

    In TILES, as one LOOP, as a loop for each operand of a concatenate (PARTS); ANY: unknown.
    """

    TILES = enum.auto()
    LOOP = enum.auto()
    PARTS = enum.auto()
    ANY = enum.auto()


def code_generator(body: Computation) -> CodeGenerator:
    """Returns which of XLA:CPU's code generators compiles a fusion, given its fused computation."""
    if any(i.opcode in _LOOPED for i in body.instructions):
        return CodeGenerator.PARTS if _ends_in_parts(body) else CodeGenerator.LOOP
    if all(i.opcode in TILED and i.shape.element_type in _TYPES for i in body.instructions):
        return CodeGenerator.TILES
    return CodeGenerator.ANY


_SMALL_CALL = "xla_cpu_small_call"


def runs_as_one(i: Instruction) -> bool:
    """Whether `i` is a call that XLA:CPU compiles into one function, with all that it runs.

    XLA puts loops of elementwise operators, whatever their size, and other small ones into
    computations of their own (`SmallWhileLoopHoistingPass`), and compiles these by a third code
    generator (`ComputationKernelEmitter`): LLVM sees all their fusions at once.
    """
    if i.opcode != "call" or i.proto is None:
        return False
    return i.proto.frontend_attributes.map.get(_SMALL_CALL) == "true"


def one_function(module: Module) -> dict[Computation, tuple[Computation, ...]]:
    """Finds the computations that XLA:CPU compiles into one function, not each by itself.

    A call that `runs_as_one` is compiled with all that it runs. Returns each such computation ->
    all computations of its function, those of the outermost such call.
    """
    calls = [i for c in module.control_computations for i in c.instructions if runs_as_one(i)]
    functions: dict[Computation, tuple[Computation, ...]] = {}
    for call in calls:
        together = tuple(after_needs(call.called, _run_by))
        for computation in together:
            functions[computation] = max(together, functions.get(computation, ()), key=len)
    return functions


def _run_by(computation: Computation) -> list[Computation]:
    return [c for i in computation.instructions for c in i.called_control]


def _ends_in_parts(body: Computation) -> bool:
    """Whether a fusion's root is a concatenate, or made of one only by opcodes not in `_LOOPED`."""
    roots = [] if body.root is None else [body.root]
    before = after_needs(roots, lambda i: () if i.opcode in _LOOPED else i.operands)
    return any(i.opcode == "concatenate" for i in before)

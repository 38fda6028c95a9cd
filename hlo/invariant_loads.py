"""Finds loads that XLA's GPU backend takes for invariant though another kernel writes the memory.

With programmatic dependent launch a kernel may start before the one ahead of it has ended. After
its scheduler XLA (PdlLaunchAnnotationPass) lets each Triton product launch the fusion scheduled
next, and marks the operands that this reads from the product. They must not be loaded as invariant
(`ld.global.nc`, which a cache that is not coherent may serve). A compiled kernel is reused for
fusions of equal code, whatever their marks (KernelReuseCache). XLA adds to marks that it finds. So
if all fusions of equal code have the same marks, none gets a wrong kernel.
"""

import collections
import json
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from hlo.gpu_executable import GpuExecutable
from hlo.module import Computation, Instruction, Module, parse_module_proto

MARK = "xla.no_invariant_operands"
"""The frontend attribute: numbers of operands, with commas between them."""

_PRODUCTS = ("__triton_gemm", "__triton_nested_gemm_fusion")
_PASSED_OVER = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")


class InvariantLoads(NamedTuple):
    """GPU fusions with an operand that must not be loaded as invariant, and those that do so.

    Another kernel may write it while they run, which an invariant load may not see.

    Attributes:
      marked: number of fusions with a kernel that XLA marks so.
      wrong: (marked fusion, the fusion for which its kernel was compiled, without its mark).
    """

    marked: int
    wrong: tuple[tuple[str, str], ...]


def invariant_loads(module: bytes, executable: GpuExecutable) -> InvariantLoads:
    """Counts fusions that have a kernel and that XLA marks (`MARK`), and finds wrong kernels.

    Wrong are those that were compiled for another fusion whose mark lacks an operand of theirs.

    Args:
      module: the executable's, serialized. executable: as it was read.
    """
    marks: dict[str, set[str]] = {}
    for computation in parse_module_proto(module).computations:
        for i in computation.instructions:
            if MARK in i.frontend_attributes.map:
                marks[i.name] = set(i.frontend_attributes.map[MARK].split(","))
    kernels = {thunk.name: thunk.kernel for thunk in executable.all_thunks if thunk.kernel}
    # A kernel is named for the fusion that it was compiled for.
    first = {re.sub(r"\W", "_", name): name for name in kernels}
    wrong = []
    for name, operands in marks.items():
        origin = first.get(kernels.get(name, ""), name)
        if not operands <= marks.get(origin, set()):
            wrong.append((name, origin))
    return InvariantLoads(sum(name in kernels for name in marks), tuple(sorted(wrong)))


def shared_marks(module: Module) -> dict[str, str]:
    """Finds fusions that will share a kernel with one that XLA marks, and should have its mark too.

    The mark lists operands that are not to be loaded as invariant. Fusions that differ in
    constants, for example, count as equal though XLA may distinguish them: a superfluous mark only
    makes a load coherent that need not be.

    Args:
      module: a scheduled one, before XLA has marked it.

    Returns:
      Name of each fusion, marked or not, whose code another has, if one of them is marked -> the
      value of `MARK` for it: the marked operands of all of them.
    """
    marks: dict[Instruction, set[int]] = {}
    alike: dict[Hashable, list[Instruction]] = collections.defaultdict(list)
    for computation in module.control_computations:
        for i in computation.instructions:
            if i.opcode == "fusion":
                alike[i.fusion_kind, i.shape, tuple(o.shape for o in i.operands)].append(i)
        for product, fusion in _launches(computation.schedule or ()):
            read = {k for k, o in enumerate(fusion.operands) if _comes_from(o, product)}
            if read:
                marks.setdefault(fusion, set()).update(read)
    mark_by_name: dict[str, str] = {}
    for group in alike.values():
        if len(group) < 2 or not any(i in marks for i in group):
            continue
        for same in _by_code(group):
            operands = sorted(set().union(*(marks.get(i, ()) for i in same)))
            if operands and len(same) > 1:
                mark_by_name |= dict.fromkeys((i.name for i in same), ",".join(map(str, operands)))
    return mark_by_name


def _launches(schedule: Sequence[Instruction]) -> Iterator[tuple[Instruction, Instruction]]:
    """Yields each Triton matrix product and the fusion after it, which XLA lets it launch early."""
    working = [i for i in schedule if i.opcode not in _PASSED_OVER]
    for i, following in zip(working, working[1:], strict=False):
        if following.opcode == "fusion" and _is_product(i):
            yield i, following


def _is_product(i: Instruction) -> bool:
    if i.opcode != "fusion" or not any(p.encode() in i.backend_config for p in _PRODUCTS):
        return False
    config = json.loads(i.backend_config).get("fusion_backend_config", {})
    dots = sum(k.opcode == "dot" for k in i.called[0].instructions)
    return config.get("kind") in _PRODUCTS and dots == 1


def _comes_from(operand: Instruction, product: Instruction) -> bool:
    """Whether an operand is a product's result, through bitcasts and tuples alone (XLA's rule)."""
    while operand is not product:
        if operand.opcode == "bitcast":
            operand = operand.operands[0]
        elif operand.opcode == "get-tuple-element":
            whole = operand.operands[0]
            operand = whole.operands[operand.tuple_index] if whole.opcode == "tuple" else whole
        else:
            return False
    return True


def _by_code(fusions: Sequence[Instruction]) -> Iterator[list[Instruction]]:
    """Yields groups of fusions with equal bodies but for names, constants and most attributes."""
    groups: dict[Hashable, list[Instruction]] = collections.defaultdict(list)
    for i in fusions:
        groups[_code(i.called[0])].append(i)
    yield from groups.values()


def _code(body: Computation) -> Hashable:
    number = {i: k for k, i in enumerate(body.instructions)}
    return tuple(
        (i.opcode, i.shape, tuple(number[o] for o in i.operands), i.parameter_number, i.dimensions)
        for i in body.instructions
    )

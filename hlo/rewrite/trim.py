"""Drops outputs of fusions that nothing reads, and all that only they needed.

After its scheduler XLA eliminates dead code once more. Of a fusion with several outputs it keeps
those that are read; a fusion that is left with one hands it over as it is, without a tuple. What is
planned is to be what runs, so this is done beforehand, by the same rules: then XLA finds nothing.
"""

from collections.abc import Iterable, Sequence

from hlo import xla_pb2
from hlo.graph import MutableComputation, MutableModule
from hlo.instructions import relist
from hlo.shapes import TUPLE
from hlo.walk import after_needs, post_order

FORWARDING = ("bitcast", "get-tuple-element")
"""Opcodes that hand their operand on."""

_Instruction = xla_pb2.HloInstructionProto


def drop_unread(
    module: MutableModule, computation: MutableComputation, repeated: Iterable[_Instruction]
) -> None:
    """Removes clones and their originals that nothing reads, and unread outputs of those left.

    Only where an instruction is computed more than once can it have lost its readers. So only
    those, and what forwards their results, are removed, unless they have control edges; they must
    be without side effects.

    Args:
      module: that it belongs to; bodies of fusions that lose outputs are changed, too.
      computation: fusions of it that lose outputs, and what reads them, are changed.
      repeated: clones and their originals.
    """
    repeats = {i.id for i in repeated}
    if not repeats:
        return
    readers: dict[int, set[int]] = {i.id: set() for i in computation.instructions()}
    by_id = {i.id: i for i in computation.instructions()}
    controlled: set[int] = set()
    for i in computation.instructions():
        for k in i.operand_ids:
            readers[k].add(i.id)
        if i.control_predecessor_ids:
            controlled |= {i.id, *i.control_predecessor_ids}
    lost: set[int] = set()
    dead: set[int] = set()
    for i in reversed(post_order(computation.instructions())):  # each after all that reads it
        given = set(i.operand_ids)
        reading = [by_id[k] for k in sorted(readers[i.id])]
        if i.id in repeats and reading and not controlled & {i.id, *readers[i.id]}:
            dead |= _trim(module, computation, i, reading)
        needed = readers[i.id] or i.id in controlled or i.id == computation.computation.root_id
        forwards = i.id in lost and i.opcode in FORWARDING
        if not needed and (i.id in repeats or forwards):
            dead.add(i.id)
        left = set() if i.id in dead else set(i.operand_ids)
        for k in given - left:
            readers[k].discard(i.id)
            lost.add(k)
    computation.remove(dead)


def _trim(
    module: MutableModule,
    computation: MutableComputation,
    fusion: _Instruction,
    readers: Sequence[_Instruction],
) -> set[int]:
    """Removes a fusion's unread outputs, if XLA would; returns ids of readers to remove too."""
    if fusion.opcode != "fusion" or any(i.opcode != "get-tuple-element" for i in readers):
        return set()
    body = module.called(fusion)
    used = sorted({i.tuple_index for i in readers})
    if (
        body.root.opcode != "tuple"
        or body.root.HasField("sharding")
        or fusion.output_operand_aliasing
        or fusion.fusion_kind == "kCustom"
        or fusion.id == computation.computation.root_id
        or len(used) == len(body.root.operand_ids)
    ):
        return set()
    _keep_outputs(fusion, body, used)
    sweep_fusion(fusion, body)
    if len(used) == 1:
        for reader in readers:
            computation.replace(reader, fusion)
        return {i.id for i in readers}
    for reader in readers:
        reader.tuple_index = used.index(reader.tuple_index)
    return set()


def _keep_outputs(fusion: _Instruction, body: MutableComputation, used: Sequence[int]) -> None:
    """Removes all outputs of a fusion but those numbered `used`; one alone is left untupled.
    Its body keeps what only the others needed: see `sweep_fusion`.
    """
    result = body.root
    if len(used) == 1:
        body.computation.root_id = result.operand_ids[used[0]]
        shape = xla_pb2.ShapeProto()
        shape.CopyFrom(fusion.shape.tuple_shapes[used[0]])
        fusion.shape.CopyFrom(shape)
        return
    result.operand_ids[:] = [result.operand_ids[k] for k in used]
    for i in (fusion, result):
        relist(i.shape.tuple_shapes, [i.shape.tuple_shapes[k] for k in used])


def trim_branches(
    module: MutableModule, computation: MutableComputation, i: _Instruction, *, whole: bool
) -> None:
    """Removes results of a conditional that nothing reads, and what branches need for them alone.
    Does nothing if it is a root, is read as a whole, or nothing reads it. Fusions in its branches
    stay as they are, or go as a whole.

    Args:
      module: that it belongs to. computation: the conditional's. i: it; no branch has side effects.
      whole: whether nothing is dropped where a branch has a fusion of several results, as XLA would
        then take those that nothing reads out of it.
    """
    branches = [module.called(i, k) for k in range(len(i.called_computation_ids))]
    if whole and any(_joins_results(module, branch) for branch in branches):
        return
    readers = computation.readers(i)
    used = sorted({reader.tuple_index for reader in readers})
    indexed = all(reader.opcode == "get-tuple-element" for reader in readers)
    is_root = i.id == computation.computation.root_id
    if not indexed or is_root or not 0 < len(used) < len(i.shape.tuple_shapes):
        return
    for reader in readers:
        reader.tuple_index = used.index(reader.tuple_index)
    for branch in branches:
        lost = branch.root
        parts = branch.operands(lost) if lost.opcode == "tuple" else None
        elements = [parts[n] if parts else branch.tuple_element(lost, n) for n in used]
        shape = xla_pb2.ShapeProto()
        shape.CopyFrom(lost.shape)
        relist(shape.tuple_shapes, [shape.tuple_shapes[n] for n in used])
        root = branch.make("tuple", lost.name, shape, *elements)
        branch.computation.root_id = root.id
        branch.computation.ClearField("program_shape")
        branch.place([*branch.order, *(new.id for new in branch.added())])
        branch.sweep([lost])
        for inner in branch.instructions():
            if inner.opcode == "conditional":
                trim_branches(module, branch, inner, whole=whole)
        _hand_on(branch)
        branch.reorder()
    relist(i.shape.tuple_shapes, [i.shape.tuple_shapes[n] for n in used])


def _hand_on(branch: MutableComputation) -> None:
    """Makes a branch's root the tuple of which the root tuple takes all elements, in order.
    XLA's TupleSimplifier, which follows the scheduler in its copy insertion, does so.
    """
    root = branch.root
    elements = branch.operands(root) if root.opcode == "tuple" else []
    taken = [(e.operand_ids[0], e.tuple_index) for e in elements if e.opcode == "get-tuple-element"]
    if not taken or len(taken) < len(elements):
        return
    (whole,) = branch.operands(elements[0])
    if whole.shape == root.shape and taken == [(whole.id, k) for k in range(len(taken))]:
        branch.computation.root_id = whole.id
        branch.sweep([root])


def _joins_results(module: MutableModule, body: MutableComputation) -> bool:
    """Whether a computation, or a conditional's branch in it, has a fusion of several results."""
    return any(
        (i.opcode == "fusion" and i.shape.element_type == TUPLE)
        or (
            i.opcode == "conditional"
            and any(_joins_results(module, module.body(k)) for k in i.called_computation_ids)
        )
        for i in body.instructions()
    )


def without_transfer(
    fusion: _Instruction, body: MutableComputation, results: Sequence[int]
) -> list[int]:
    """Removes a collective from a fusion into which XLA:TPU has put it, and its results.

    Args:
      fusion: see `hlo.async_collective_fusion`. body: its own; both are changed in place.
      results: numbers of the results that do not belong to the collective.

    Returns:
      The numbers of the operands that are left; the caller sets the operands themselves.
    """
    fusion.operand_ids[:] = range(len(fusion.operand_ids))
    fusion.backend_config = b""  # it says which results are the transfer's
    _keep_outputs(fusion, body, results)
    sweep_fusion(fusion, body)
    return list(fusion.operand_ids)


def sweep_fusion(fusion: _Instruction, body: MutableComputation) -> None:
    """Removes unneeded instructions from a fusion's body, and operands whose parameters go."""
    by_id = {i.id: i for i in body.instructions()}
    needed = after_needs(
        [body.root.id], lambda k: (*by_id[k].operand_ids, *by_id[k].control_predecessor_ids)
    )
    body.remove(by_id.keys() - needed)
    parameters = sorted(
        (i for i in body.instructions() if i.opcode == "parameter"),
        key=lambda i: i.parameter_number,
    )
    operands = [fusion.operand_ids[i.parameter_number] for i in parameters]
    for number, parameter in enumerate(parameters):
        parameter.parameter_number = number
    fusion.operand_ids[:] = operands
    # It describes parameters and result as they were; XLA does not read it here.
    body.computation.ClearField("program_shape")

"""HLO to tensor graphs: one TensorGraph for every computation that runs step by step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hlo.module import Computation, Instruction
from hlo.sharing import Sharing
from hlo.values import Dataflow, Value
from olla_xla.problem import Operator, Tensor, TensorGraph

__all__ = ["LoweredComputation", "lower"]

_FREE = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})

# Operations whose relative order other processes or the host can see.
_ORDERED = (
    "all-reduce all-gather all-to-all collective-permute collective-broadcast reduce-scatter "
    "ragged-all-to-all send recv infeed outfeed rng rng-get-and-update-state partition-id"
).split()


@dataclasses.dataclass(frozen=True)
class LoweredComputation:
    """A computation and its graph; operator k is `instructions[k]`, in XLA's order."""

    computation: Computation
    instructions: tuple[Instruction, ...]
    graph: TensorGraph


def lower(
    dataflow: Dataflow,
    computation: Computation,
    pairs: Sharing,
    transient: Mapping[Computation, int],
) -> LoweredComputation:
    """The tensor graph of one computation.

    A value belongs to the outermost computation that sees its buffer: loop state and call results
    are charged to the caller. Constants and tuple index tables are left out, as in XLA's totals.

    Args:
      dataflow: the module's value analysis.
      computation: one of its control computations, with a schedule.
      pairs: in-place candidates (hlo.sharing).
      transient: peak bytes of each computation that this one may call.
    """
    assert computation.schedule is not None
    instructions = computation.schedule
    step = {i: k for k, i in enumerate(instructions)}
    operators = tuple(_operator(i, transient) for i in instructions)
    homes = _homes(dataflow)
    tensors: list[Tensor] = []
    ids: dict[int, int] = {}
    for value in dataflow.values:
        if homes[value.buffer] is not computation or not _counts(value):
            continue
        tensor = _tensor(dataflow, value, computation, step)
        if tensor is not None:
            ids[value.id] = len(tensors)
            tensors.append(tensor)
    inplace = [
        (ids[v], ids[a])
        for v in ids
        for a, _ in pairs[v]
        if a in ids and tensors[ids[v]].buffer != tensors[ids[a]].buffer
    ]
    graph = TensorGraph(
        name=computation.name,
        operators=operators,
        tensors=tuple(tensors),
        edges=tuple(sorted(_edges(instructions, step))),
        alias_edges=tuple(sorted(_alias_edges(tensors))),
        inplace=tuple(dict.fromkeys(inplace)),
    )
    return LoweredComputation(computation, tuple(instructions), graph)


def _operator(i: Instruction, transient: Mapping[Computation, int]) -> Operator:
    called = [transient[c] for c in i.called if c in transient]
    return Operator(
        name=i.name,
        opcode=i.opcode,
        transient_bytes=max(called, default=0),
        free=i.opcode in _FREE,
        location=i.location,
        op_name=i.op_name,
    )


def _homes(dataflow: Dataflow) -> list[Computation]:
    """By alias set: the outermost computation in which one of its values appears."""
    depth = {c: k for k, c in enumerate(dataflow.module.control_computations)}  # entry is last
    return [
        max((i.computation for v in members for i, _ in v.positions), key=depth.__getitem__)
        for members in dataflow.buffers
    ]


def _counts(value: Value) -> bool:
    return not value.shape.is_tuple and value.instruction.opcode != "constant"


def _tensor(
    dataflow: Dataflow, value: Value, computation: Computation, step: Mapping[Instruction, int]
) -> Tensor | None:
    """The tensor of a value as one computation sees it, or None if it is not seen there."""
    here = sorted({step[i] for i, _ in value.positions if i in step})
    if not here:
        return None
    source = step.get(value.instruction, here[0])
    reads = {step[u.instruction] for u in value.uses if u.instruction in step}
    is_parameter = value.instruction.opcode == "parameter"
    at_entry = computation is dataflow.module.entry
    where = (value.instruction.parameter_number, value.index)
    readonly = is_parameter and at_entry and where not in dataflow.module.donated
    root = any(i.is_root for i, _ in value.positions if i in step)
    category = "argument" if is_parameter else "output" if value.live_out else "temporary"
    return Tensor(
        name=value.name,
        bytes=value.bytes,
        source=source,
        sinks=tuple(sorted((reads | set(here)) - {source})),
        buffer=value.buffer,
        live_in=is_parameter,
        live_out=readonly or root,
        category=category,
    )


def _edges(instructions: Sequence[Instruction], step: Mapping[Instruction, int]) -> set:
    edges = set()
    ordered: list[int] = []
    for k, i in enumerate(instructions):
        edges.update((step[o], k) for o in i.operands)
        edges.update((step[c], k) for c in i.control_predecessors)
        kind = i.opcode.removesuffix("-start").removesuffix("-done")
        if kind in _ORDERED or i.side_effect or kind == "async" or kind == "copy" != i.opcode:
            ordered.append(k)
        if i.opcode.endswith("-done"):
            start = step[i.operands[0]]
            for between in range(start + 1, k):  # keep work between a start and its done
                if instructions[between].opcode not in _FREE:
                    edges.update(((start, between), (between, k)))
    edges.update(zip(ordered, ordered[1:], strict=False))
    return edges


def _alias_edges(tensors: Sequence[Tensor]) -> set[tuple[int, int]]:
    """Readers of a tensor before the operator that overwrites its buffer, in XLA's order."""
    buffers: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        buffers.setdefault(tensor.buffer, []).append(tensor)
    edges = set()
    for members in buffers.values():
        members.sort(key=lambda t: (not t.live_in, t.source))
        for a, b in zip(members, members[1:], strict=False):
            edges.update((u, b.source) for u in (*a.sinks, a.source) if u != b.source)
    return edges

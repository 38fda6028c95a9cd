"""HLO to tensor graphs: one TensorGraph for every computation that runs step by step."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

from hlo.module import Computation, Instruction
from hlo.sharing import Sharing
from hlo.values import Dataflow, Value
from olla_xla.memory.kernels import Pattern, joined_buffers
from olla_xla.problem.graph import Operator, Tensor, TensorGraph

_FREE = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})

# Operations whose relative order other processes or the host can see.
_ORDERED = frozenset(
    "all-reduce all-gather all-to-all collective-permute collective-broadcast reduce-scatter "
    "ragged-all-to-all send recv infeed outfeed rng rng-get-and-update-state partition-id".split()
)


_ENDING = ("-done", "-update")


@dataclasses.dataclass(frozen=True)
class LoweredComputation:
    """A computation and its tensor graph, with operators and tensors matched by position. Tensor k
    of the graph stands for the value whose id is `values[k]`.
    """

    computation: Computation
    instructions: tuple[Instruction, ...]
    graph: TensorGraph
    values: tuple[int, ...]


def lower(
    dataflow: Dataflow,
    computation: Computation,
    pairs: Sharing,
    peaks: Mapping[Computation, int],
    released: frozenset[str] = frozenset(),
    kept: Mapping[str, Pattern] | None = None,
) -> LoweredComputation:
    """The tensor graph of one computation. Every value that appears in it is a tensor, also one
    that its caller owns (parameters, results, loop state). An operator that calls computations gets
    their peak less the bytes of its own operands and results as `transient_bytes`, which is
    negative where those never live together inside. So the peak never exceeds that of the flattened
    program. Constants and tuple index tables are left out, as in XLA's totals.

    Args:
      dataflow: the module's value analysis.
      computation: one of its control computations, with a schedule.
      pairs: in-place candidates (hlo.sharing).
      peaks: peak bytes of each computation that this one may call (or a lower bound of it).
      released: names of asynchronous starts that may overlap with less work than in XLA's order.
      kept: kernel name -> which of its arrays must share memory. Where a result is to overwrite an
        operand, all other readers of the operand are ordered before the kernel.
    """
    assert computation.schedule is not None
    instructions = computation.schedule
    step = {i: k for k, i in enumerate(instructions)}
    tensors: list[Tensor] = []
    ids: dict[int, int] = {}
    for value in dataflow.seen_in[computation]:
        if not value.shape.is_tuple and value.instruction.opcode != "constant":
            tensor = _tensor(dataflow, value, computation, step)
            if tensor is not None:
                ids[value.id] = len(tensors)
                tensors.append(tensor)
    tensors = _without_own_done(tensors, instructions)
    touched = _touched(tensors, instructions)
    operators = tuple(_operator(i, peaks, touched.get(k, 0)) for k, i in enumerate(instructions))
    inplace: list[tuple[int, int]] = []
    for v, b in ids.items():
        out = tensors[b]
        if pairs[v] and not instructions[out.source].called_control:
            others = [ids[a] for a, _ in pairs[v] if a in ids]
            inplace += [(b, a) for a in others if tensors[a].buffer != out.buffer]
    same = joined_buffers(dataflow, instructions, kept or {})
    joined = [
        dataclasses.replace(t, buffer=same[t.buffer]) if t.buffer in same else t for t in tensors
    ]
    graph = TensorGraph(
        name=computation.name,
        operators=operators,
        tensors=tuple(tensors),
        edges=tuple(sorted(_edges(instructions, step, released))),
        alias_edges=tuple(sorted(_alias_edges(joined))),
        inplace=tuple(dict.fromkeys(inplace)),
    )
    return LoweredComputation(computation, tuple(instructions), graph, tuple(ids))


def _operator(i: Instruction, peaks: Mapping[Computation, int], touched: int) -> Operator:
    called = [peaks[c] for c in i.called_control]
    return Operator(
        name=i.name,
        opcode=i.opcode,
        transient_bytes=max(called) - touched if called else 0,
        free=i.opcode in _FREE,
    )


def _touched(tensors: Sequence[Tensor], instructions: Sequence[Instruction]) -> dict[int, int]:
    """Number of each operator that calls a computation -> bytes of buffers it reads or defines."""
    buffers: dict[int, dict[int, int]] = {
        k: {} for k, i in enumerate(instructions) if i.called_control
    }
    for t in tensors if buffers else ():
        for k in (t.source, *t.sinks):
            if k in buffers:
                buffers[k][t.buffer] = max(t.bytes, buffers[k].get(t.buffer, 0))
    return {k: sum(sizes.values()) for k, sizes in buffers.items()}


def _tensor(
    dataflow: Dataflow, value: Value, computation: Computation, step: Mapping[Instruction, int]
) -> Tensor | None:
    """The tensor of a value as one computation sees it, or None if the value does not occur in it.
    `step`: instruction -> its step in that computation.
    """
    here = [i for i, _ in value.positions if i in step]
    if not here:
        return None
    seen = {step[i] for i in here}
    source = step[value.instruction] if value.instruction in step else min(seen)
    seen.update([step[u.instruction] for u in value.uses if u.instruction in step])
    seen.remove(source)
    live_in = "parameter" in [i.opcode for i in here]
    readonly = False
    if live_in and computation is dataflow.module.entry:
        where = (value.instruction.parameter_number, value.index)
        readonly = where not in dataflow.module.donated
    category = "argument" if live_in else "output" if value.live_out else "temporary"
    return Tensor(
        name=value.name,
        bytes=value.bytes,
        source=source,
        sinks=tuple(sorted(seen)),
        buffer=value.buffer,
        live_in=live_in,
        live_out=readonly or computation.root in here,
        category=category,
    )


def _edges(
    instructions: Sequence[Instruction], step: Mapping[Instruction, int], released: frozenset[str]
) -> set:
    edges = set()
    ordered: list[int] = []
    for k, i in enumerate(instructions):
        edges.update([(step[o], k) for o in (*i.operands, *i.control_predecessors)])
        if _keeps_its_order(i):
            ordered.append(k)
        if i.opcode.endswith("-done") and i.operands[0].name not in released:
            start = step[i.operands[0]]
            for between in range(start + 1, k):  # keep work between a start and its done
                if instructions[between].opcode not in _FREE:
                    edges.update(((start, between), (between, k)))
    edges.update(zip(ordered, ordered[1:], strict=False))
    return edges


def _keeps_its_order(i: Instruction) -> bool:
    """Whether an instruction must keep its order among all for which this is true: those that are
    asynchronous or visible from outside.
    """
    kind = _kind(i.opcode)
    return kind == "async" or kind == "copy" != i.opcode or _is_seen_outside(i)


@functools.cache
def _kind(opcode: str) -> str:
    return opcode.removesuffix("-start").removesuffix("-done")


def _is_seen_outside(i: Instruction) -> bool:
    """Whether the host or other processes can see when `i`, or what it calls, runs."""
    if _kind(i.opcode) in _ORDERED or i.side_effect:
        return True
    return any(_is_seen_outside(inner) for c in i.called_control for inner in c.instructions)


def _without_own_done(
    tensors: Sequence[Tensor], instructions: Sequence[Instruction]
) -> list[Tensor]:
    """Returns tensors in which one that an asynchronous operation updates in place ends at the
    start of that operation. Its done counts as one more reader in the tensors given, as the start's
    tuple still has the operand as an element, though it extracts the result. No other reader may be
    left out: one that reads the tensor after its buffer is written would read something else.
    """
    result = list(tensors)
    ends = any(i.opcode.endswith(_ENDING) for i in instructions)
    for members in _alias_sets(tensors) if ends else ():
        for k, j in zip(members, members[1:], strict=False):
            start = instructions[tensors[j].source]
            kept = tuple(u for u in tensors[k].sinks if not _ends(instructions[u], start))
            if kept != tensors[k].sinks:
                result[k] = dataclasses.replace(tensors[k], sinks=kept)
    return result


def _ends(done: Instruction, start: Instruction) -> bool:
    """Whether `done` is the -done or -update of the asynchronous operation begun by `start`."""
    while done.opcode.endswith(_ENDING) and done.operands:
        done = done.operands[0]
        if done is start:
            return True
    return False


def _alias_sets(tensors: Sequence[Tensor]) -> list[list[int]]:
    """For each buffer of several tensors, their ids in the order in which XLA's schedule writes."""
    buffers: dict[int, list[int]] = {}
    for k, tensor in enumerate(tensors):
        buffers.setdefault(tensor.buffer, []).append(k)
    several = [members for members in buffers.values() if len(members) > 1]
    for members in several:
        members.sort(key=lambda k: (not tensors[k].live_in, tensors[k].source))
    return several


def _alias_edges(tensors: Sequence[Tensor]) -> set[tuple[int, int]]:
    """Edges (reader, writer) from a tensor's readers to the operator that overwrites its buffer in
    XLA's order. An operator may have several results in one buffer: they are written at once.
    """
    edges = set()
    for members in _alias_sets(tensors):
        written = itertools.groupby((tensors[k] for k in members), key=lambda t: t.source)
        groups = [(source, list(group)) for source, group in written]
        for (_, before), (source, _) in itertools.pairwise(groups):
            edges.update((u, source) for a in before for u in (*a.sinks, a.source) if u != source)
    return edges

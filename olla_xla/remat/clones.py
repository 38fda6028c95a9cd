"""From evictions to clones: which instruction is computed again, from what, and who reads it."""

import numpy as np

from hlo.module import Instruction
from hlo.rewrite.clones import Clone
from hlo.values import Dataflow
from olla_xla.remat.evictions import Expansion
from olla_xla.remat.graph import RematGraph
from olla_xla.remat.purity import FORWARDING


def clones(dataflow: Dataflow, g: RematGraph, expansion: Expansion) -> tuple[Clone, ...]:
    """Returns the clones (copies of instructions that compute dropped tensors again) that
    `expansion`, the effects of a set of evictions, needs: in execution order, none unread.
    """
    return _Builder(dataflow, g, expansion).build()


class _Builder:
    def __init__(self, dataflow: Dataflow, g: RematGraph, e: Expansion) -> None:
        self._dataflow = dataflow
        self._g = g
        self._e = e
        self._tensor = {value: t for t, value in enumerate(g.values)}
        self._segments: dict[int, list[tuple[int, int]]] = {}
        for t, start, end in zip(e.seg_tensor, e.seg_start, e.seg_end, strict=True):
            self._segments.setdefault(int(t), []).append((int(start), int(end)))
        self._taken = {i.name for c in dataflow.module.computations for i in c.instructions}
        self._made: dict[tuple[Instruction, int], str] = {}
        """(original, key of its version) -> the clone's name."""
        self._operands: dict[str, tuple[Instruction, tuple[str, ...]]] = {}
        self._readers: dict[str, list[tuple[str, int]]] = {}
        self._given = set(g.arrays.source[list(g.repeats)].tolist())
        self._read_later()

    def _read_later(self) -> None:
        """Enters the result of a transfer between devices that repeats an earlier one's bytes as
        what later readers of the earlier result read, instead of a clone.
        """
        for t, later in self._g.repeats.items():
            for start, _ in self._segments.get(t, ()):
                since = [k for k in later if k.since < start]
                for handle in since[-1].handles if since else ():
                    self._made[handle, start] = since[-1].handle.name

    def build(self) -> tuple[Clone, ...]:
        """Makes the clones (copies of instructions that compute dropped tensors again), each with
        its operands and its readers, in the order in which they run.
        """
        g, e = self._g, self._e
        for k in np.argsort(e.clone_key, kind="stable"):
            key, original = int(e.clone_key[k]), g.instructions[e.clone_op[k]]
            if e.clone_op[k] in self._given:
                continue
            operands = tuple(self._version(o, key) for o in original.operands)
            self._add(original, key, operands)
        for v, reader in enumerate(g.instructions):
            if e.removed[v] or reader.opcode in FORWARDING or _begins_loop(reader):
                continue
            # A loop reads its state when it runs, whenever the tuple was put together.
            reads = reader.operands[0] if reader.opcode == "while" else reader
            for number, operand in enumerate(reads.operands):
                name = self._version(operand, (2 * v + 1) * g.arrays.n)
                if name != operand.name:
                    self._readers[name].append((reads.name, number))
        return self._used()

    def _used(self) -> tuple[Clone, ...]:
        """Returns the clones that other clones or the module's own instructions read, in order."""
        kept: list[Clone] = []
        wanted: set[str] = set()
        for name, (original, operands) in reversed(self._operands.items()):
            readers = tuple(self._readers[name])
            if readers or name in wanted:
                wanted.update(operands)
                kept.append(Clone(name, original.name, operands, readers))
        return tuple(reversed(kept))

    def _add(self, original: Instruction, key: int, operands: tuple[str, ...]) -> str:
        name = f"{original.name}.remat"
        count = 1
        while name in self._taken:
            count += 1
            name = f"{original.name}.remat{count}"
        self._taken.add(name)
        self._made[original, key] = name
        self._operands[name] = (original, operands)
        self._readers[name] = []
        return name

    def _version(self, i: Instruction, key: int) -> str:
        """Returns the name of the instruction that has `i`'s value at the moment of the schedule
        which the integer `key` numbers: `i`, or a clone. Makes clones of what only forwards.
        """
        value = self._dataflow.at[i, ()]
        t = self._tensor.get(value.id)
        if t is None:
            return i.name
        own = (2 * int(self._g.arrays.source[t]) + 1) * self._g.arrays.n
        starts = [s for s, end in self._segments.get(t, ()) if s < key <= end]
        if not starts or starts[0] in (own, -1):
            return i.name
        return self._forwarded(i, value.instruction, starts[0])

    def _forwarded(self, i: Instruction, source: Instruction, version: int) -> str:
        """Returns the name of a clone of `i`, a bitcast or tuple element of `source`'s result, that
        reads the clone of `source` run at the moment `version`. Makes it if there is none.
        """
        if (i, version) not in self._made:
            assert i is not source, f"no clone of {i.name} was made"
            before = self._forwarded(i.operands[0], source, version)
            self._add(i, version, (before,))
        return self._made[i, version]


def _begins_loop(i: Instruction) -> bool:
    """Whether an instruction is a tuple whose only user is a while: a loop's initial state."""
    return i.opcode == "tuple" and len(i.users) == 1 and i.users[0].opcode == "while"

"""The referee for recomputation: every clone computes the same value from the same inputs.

It compares two modules, before and after clones were written, instruction by instruction, and
shares no code with what selects the clones or writes them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from hlo.compare import Comparison
from hlo.module import Computation, Instruction, Module
from hlo.rewrite.clones import Clone
from hlo.values import analyse
from olla_xla.errors import CheckError

__all__ = ["check_clones"]

_ONCE = (
    "all-gather all-reduce all-to-all async call collective-broadcast collective-permute "
    "conditional copy-done copy-start infeed outfeed parameter partition-id ragged-all-to-all recv "
    "reduce-scatter replica-id rng scatter select-and-scatter send while"
).split()
"""Prefixes of opcodes that must run exactly once: state, exchange, control flow, unordered sums."""

_CALLS = (
    "__cublas$gemm",
    "__cublas$lt$matmul",
    "__cudnn$convBiasActivationForward",
    "__cudnn$convForward",
)

_FORWARDING = ("bitcast", "get-tuple-element")


def check_clones(before: bytes, after: bytes, clones: Sequence[Clone], target: str) -> None:
    """Checks a module with clones against the module they were written into.

    A fusion may have fewer outputs than before. Then each output that is read must be computed
    inside by the same operations from the same values as the one that was read before.

    Args:
      before, after: serialized, scheduled modules. clones: what was written. target: "cpu" or
        "cuda".

    Raises:
      CheckError: a clone differs from its original, computes from other values, repeats what must
        run once, or reads a buffer that is overwritten by then; an instruction was changed, added
        or lost otherwise; an operand comes after its reader.
    """
    _Referee(before, after, clones).check(target)


class _Referee:
    def __init__(self, before: bytes, after: bytes, clones: Sequence[Clone]) -> None:
        self._comparison = Comparison(before, after)
        self._before, self._after = self._comparison.before, self._comparison.after
        self._clones = clones
        self._originals = {c.name: c.original for c in clones}
        self._agreed: set[tuple[Instruction, Instruction, Instruction]] = set()
        """Fusions of `after`, with pairs of instructions inside that compute the same value."""

    def check(self, target: str) -> None:
        """Runs all checks."""
        ours = {c.name: c for c in self._after.control_computations}
        theirs = {c.name: c for c in self._before.control_computations}
        if ours.keys() != theirs.keys():
            raise CheckError("the module with clones runs other computations than the module")
        if self._after.aliases != self._before.aliases:
            raise CheckError("the module with clones donates other arguments than the module")
        seen: set[str] = set()
        for name, old in theirs.items():
            seen |= self._computation(old, ours[name])
        self._check_written(seen)
        _check_buffers(self._after, seen, target)

    def _computation(self, old: Computation, new: Computation) -> set[str]:
        """Checks one computation; returns the names of the clones in it."""
        known = {i.name: i for i in old.instructions}
        if old.root is None or new.root is None or not self._agree(new.name, old.root, new.root):
            raise CheckError(f"{new.name} returns another value than before")
        clones: set[str] = set()
        for i in new.instructions:
            original = known.get(self._value(i))
            if original is None:
                raise CheckError(f"{i.name} is neither in the module nor a clone")
            self._same(original, i)
            if i.name in self._originals:
                clones.add(i.name)
                _check_repeatable(original)
        names = {i.name for i in new.instructions}
        for name in known.keys() - names:
            if name not in self._originals.values() and known[name].opcode not in _FORWARDING:
                raise CheckError(f"{name} is lost, and nothing computes it instead")
        _check_order(new)
        return clones

    def _value(self, i: Instruction) -> str:
        """The name of the original instruction whose value this one computes."""
        return self._originals.get(i.name, i.name)

    def _same(self, old: Instruction, new: Instruction) -> None:
        """Same operation on the same values: by induction over the order, the same result."""
        if [c.name for c in old.control_predecessors] != [c.name for c in new.control_predecessors]:
            raise CheckError(f"{new.name} has other control dependencies than {old.name}")
        if _is_smaller(old, new):
            self._check_smaller(old, new)
            return
        if len(old.operands) != len(new.operands):
            raise CheckError(f"{new.name} has other operands than {old.name}")
        pairs = list(zip(old.operands, new.operands, strict=True))
        if new.opcode == "get-tuple-element" and _is_smaller(*pairs[0]):
            same = self._comparison.alike(old, new, "tuple_index")
            agree = pairs[0][0].name == self._value(pairs[0][1])
            if same and agree:
                self._check_output(new.name, old, *pairs[0], new.tuple_index)
        else:
            same = self._comparison.same(old, new)
            agree = all(self._agree(new.name, *pair) for pair in pairs)
        if not agree:
            raise CheckError(f"{new.name} computes from other values than {old.name}")
        if not same:
            raise CheckError(f"{new.name} is another operation than {old.name}")

    def _agree(self, reader: str, old: Instruction, new: Instruction) -> bool:
        """Whether what is read now stands for what was read before.

        Raises:
          CheckError: it is the same fusion, but another of its outputs.
        """
        if old.name == self._value(new):
            return not _is_smaller(old, new)
        if old.opcode != "get-tuple-element" or old.operands[0].name != self._value(new):
            return False
        fusion = old.operands[0]
        if not _is_smaller(fusion, new) or new.shape.is_tuple:
            return False
        # It had several outputs, is left with one, and hands it over without a tuple.
        self._check_output(reader, old, fusion, new, None)
        return True

    def _check_smaller(self, old: Instruction, new: Instruction) -> None:
        """Checks a fusion that lost outputs; those left are compared where they are read."""
        _check_repeatable(old)
        if old.aliasing or new.aliasing or not self._comparison.alike(old, new, "shape"):
            raise CheckError(f"{new.name} is another operation than {old.name}")
        numbers = [p.parameter_number for p in new.called[0].parameters]
        if numbers != list(range(len(new.operands))):
            raise CheckError(f"{new.name} has other operands than its body has parameters")

    def _check_output(
        self,
        reader: str,
        element: Instruction,
        old: Instruction,
        new: Instruction,
        index: int | None,
    ) -> None:
        """Checks that an output of a smaller fusion is one that was read of it before.

        From the output up to the parameters, each operation in the one body must be that in the
        other, and what the fusions are given for a parameter the same value.

        Args:
          reader: who reads it. element: takes the output out of `old`. index: of the output of
            `new`; None if it is all that `new` computes.
        """

        def refuse(why: str) -> CheckError:
            return CheckError(
                f"{reader} reads another output of {new.name} than {element.name} of {old.name}: "
                f"{why}"
            )

        first, second = old.called[0].root, new.called[0].root
        assert first is not None and second is not None
        shape = new.shape
        if index is not None:
            if second.opcode != "tuple" or not 0 <= index < len(new.shape.elements):
                raise refuse(f"it has no output {index}")
            second, shape = second.operands[index], shape.elements[index]
        if first.opcode != "tuple" or shape != old.shape.elements[element.tuple_index]:
            raise refuse("they differ in shape")
        stack = [(first.operands[element.tuple_index], second)]
        while stack:
            a, b = stack.pop()
            if (new, a, b) in self._agreed:
                continue
            self._agreed.add((new, a, b))
            if a.opcode == b.opcode == "parameter":
                given = old.operands[a.parameter_number], new.operands[b.parameter_number]
                if a.shape != b.shape or not self._agree(new.name, *given):
                    raise refuse(f"it is given {given[1].name} in place of {given[0].name}")
            elif len(a.operands) != len(b.operands) or not self._comparison.same(a, b):
                raise refuse(f"inside, {b.name} is another operation than {a.name}")
            else:
                stack += zip(a.operands, b.operands, strict=True)

    def _check_written(self, seen: Set[str]) -> None:
        """Raises CheckError for a clone that is missing though something was to read it."""
        old = {i.name: i for c in self._before.control_computations for i in c.instructions}
        new = {i.name: i for c in self._after.control_computations for i in c.instructions}
        smaller = {n for n, i in new.items() if _is_smaller(old[self._value(i)], i)}
        readers = {c.name: [name for name, _ in c.readers] for c in self._clones}
        for clone in self._clones:
            for name in clone.operands:
                if name in readers:
                    readers[name].append(clone.name)
        for clone in self._clones:
            if clone.name in seen:
                continue
            unread = all(name not in new or name in smaller for name in readers[clone.name])
            source = clone.operands[0] if clone.operands else ""
            # A fusion that is left with one output is read without it.
            taken_out = (
                clone.original in old
                and old[clone.original].opcode == "get-tuple-element"
                and source in smaller
                and not new[source].shape.is_tuple
            )
            if not (unread or taken_out):
                raise CheckError(f"the clone {clone.name} is not in the module")


def _is_smaller(old: Instruction, new: Instruction) -> bool:
    """Whether a fusion has fewer outputs than before."""
    if not old.opcode == new.opcode == "fusion" or not old.shape.is_tuple:
        return False
    return not new.shape.is_tuple or len(new.shape.elements) < len(old.shape.elements)


def _check_repeatable(i: Instruction) -> None:
    """Raises CheckError where running an instruction twice is not the same as once."""
    if i.side_effect or i.opcode.startswith(tuple(_ONCE)) or i.opcode.endswith(("-start", "-done")):
        raise CheckError(f"{i.name} must run once; it has a clone")
    if i.opcode == "custom-call" and i.custom_call_target not in _CALLS:
        raise CheckError(
            f"{i.name} calls {i.custom_call_target}, not known to be pure; it is cloned"
        )
    for computation in i.called:
        for k in computation.instructions:
            if k.opcode != "parameter":
                _check_repeatable(k)


def _check_order(computation: Computation) -> None:
    """Raises CheckError unless every instruction is scheduled once, after its operands."""
    step = {i: k for k, i in enumerate(computation.schedule or ())}
    if len(step) != len(computation.instructions):
        raise CheckError(f"{computation.name} is not scheduled completely")
    for i, k in step.items():
        for o in (*i.operands, *i.control_predecessors):
            if step[o] >= k:
                raise CheckError(f"{i.name} runs at step {k}, before {o.name} at step {step[o]}")


def _check_buffers(module: Module, clones: set[str], target: str) -> None:
    """Raises CheckError where a clone reads a value after its buffer was overwritten."""
    dataflow = analyse(module, target)
    for members in dataflow.buffers:
        if len(members) < 2:
            continue
        for value in members:
            here = value.instruction.computation
            step = {i: k for k, i in enumerate(here.schedule or ())}
            later = [
                step[v.instruction]
                for v in members
                if v.instruction in step and step[v.instruction] > step[value.instruction]
            ]
            for use in value.uses:
                if use.instruction.name in clones and use.instruction in step and later:
                    if step[use.instruction] > min(later):
                        raise CheckError(
                            f"{use.instruction.name} reads {value.name} after it is overwritten"
                        )

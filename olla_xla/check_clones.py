"""The referee for recomputation: every clone computes the same value from the same inputs.

It compares two modules, before and after clones were written, instruction by instruction, and
shares no code with what selects the clones or writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo.clones import Clone
from hlo.comparing import Comparison
from hlo.module import Computation, Instruction, Module
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

    Args:
      before, after: serialized, scheduled modules. clones: what was written. target: "cpu" or
        "cuda".

    Raises:
      CheckError: a clone differs from its original, computes from other values, repeats what must
        run once, or reads a buffer that is overwritten by then; an instruction was changed, added
        or lost otherwise; an operand comes after its reader.
    """
    _Referee(before, after, {c.name: c.original for c in clones}).check(target)


class _Referee:
    def __init__(self, before: bytes, after: bytes, originals: Mapping[str, str]) -> None:
        self._comparison = Comparison(before, after)
        self._before, self._after = self._comparison.before, self._comparison.after
        self._originals = originals

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
        if lost := self._originals.keys() - seen:
            raise CheckError(f"the clone {min(lost)} is not in the module")
        _check_buffers(self._after, seen, target)

    def _computation(self, old: Computation, new: Computation) -> set[str]:
        """Checks one computation; returns the names of the clones in it."""
        known = {i.name: i for i in old.instructions}
        if old.root is None or new.root is None or self._value(new.root) != old.root.name:
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
        if [o.name for o in old.operands] != [self._value(o) for o in new.operands]:
            raise CheckError(f"{new.name} computes from other values than {old.name}")
        if [c.name for c in old.control_predecessors] != [c.name for c in new.control_predecessors]:
            raise CheckError(f"{new.name} has other control dependencies than {old.name}")
        if not self._comparison.same(old, new):
            raise CheckError(f"{new.name} is another operation than {old.name}")


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

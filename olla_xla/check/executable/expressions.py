"""What a module computes: a digest of its results as expressions of its arguments.

Every value gets a number, the hash of its operation and of the numbers of what that reads; two
values with one number hold the same bits. Order, names, copies, clones and in-place results leave
no trace in it, a wrong operand, a lost update or an exchanged loop state does. Fusions are seen
through, but for what decides the code that XLA makes of them (`Numbering.code`) where that may
change a bit (`exact`). What the world outside can see (callbacks, random state, collectives) is
counted in its order.
"""

from __future__ import annotations

from olla_xla.check.executable.exchanges import EXCHANGES
from olla_xla.check.executable.numbering import (
    BITCAST,
    EFFECT,
    HANDLERS,
    PARAMETER,
    Numbering,
    Numbers,
    hashed,
    named,
)
from olla_xla.check.executable.precision import ROUNDING
from olla_xla.check.executable.program import Op, Program

__all__ = ["program_digest"]


def program_digest(program: Program, target: str) -> str:
    """The digest of a module, 32 hex digits. The program cannot be used for anything else then."""
    return _Expressions(target).computation(program.entry).hex()


class _Expressions(Numbering):
    """Loops are numbered as a whole, and all of a fusion is of its kind."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._bitcasts: dict[bytes, tuple[bytes, bytes]] = {}

    def bitcast(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """The same bytes by another shape; there and back again is nothing."""
        (number,) = operands[0].values()
        first, old = self._bitcasts.get(number, (number, self.shape(op.operands[0].shape)))
        new = self.shape(op.shape)
        if new == old:
            return {(): first}
        result = hashed(BITCAST + first + old + new)
        self._bitcasts[result] = first, old
        return {(): result}

    def fusion(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """What its computation gives for these operands, made by code of this kind."""
        inside = self.run(op.called[0], operands, effects)
        rounded = {i: n for i, n in inside.items() if not self.is_free(op, i)}
        if not rounded:
            return inside
        made = self.code(op)
        return inside | {i: hashed(made + n) for i, n in rounded.items()}

    def loop(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A while: its body and condition as functions of the state, and where that begins."""
        start = operands[0]
        symbols = {i: hashed(PARAMETER + named((0, *i))) for i in start}
        inner: list[bytes] = []
        root = self.run(op.called[0], [symbols], inner)
        whole, numbers = self.whole_loop(op, start, symbols, root, inner)
        if inner:
            effects.append(hashed(EFFECT + whole))
        return numbers


_Expressions.handlers = {
    **HANDLERS,
    **EXCHANGES,
    **ROUNDING,
    "bitcast": _Expressions.bitcast,
    "fusion": _Expressions.fusion,
    "while": _Expressions.loop,
}

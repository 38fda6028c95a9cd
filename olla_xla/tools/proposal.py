"""Whether a step would need less in pieces: what `olla_xla analyze` says of it."""

from __future__ import annotations

import dataclasses

from olla_xla.compile.in_pieces import compiled_cost
from olla_xla.compile.jax_private import plain_jit
from olla_xla.errors import InputError
from olla_xla.pieces.transform import FissionPlan, in_pieces
from olla_xla.targets.target import Target
from olla_xla.tools.models import BuiltModel

__all__ = ["PiecesProposal", "propose_pieces"]

_WORTH_WHILE = 0.1
"""The fraction of the total that it must save."""

_TIME_AT_MOST = 1.0
"""The most predicted time that pieces may add, as a fraction of the step's."""


@dataclasses.dataclass(frozen=True)
class PiecesProposal:
    """A step in pieces, compiled.

    Attributes:
      value: shape of the largest value that is not made whole then. value_bytes: of it.
      line: where the user's code makes it. pieces: how many.
      xla_bytes: XLA's total of the step as it is. bytes: in pieces. Both in its own order.
      added_time: the predicted time that the pieces add, as a part of the step's; may be negative.
    """

    value: str
    value_bytes: int
    line: str
    pieces: int
    xla_bytes: int
    bytes: int
    added_time: float


def propose_pieces(model: BuiltModel, target: Target, total: int) -> PiecesProposal | None:
    """What running a step's largest values in pieces saves and costs; None where it saves little.

    The step is traced in pieces. If the estimated peak falls by a tenth of the total, that is
    compiled. If XLA's total falls by a tenth too, the step is compiled unchanged, for its time. If
    the pieces take more than twice that time, fewer are tried, once.

    Args:
      model: the step. target: what to compile it for. total: XLA's total of it, bytes.
    """
    tried = _tried(model, target, total, None)
    if tried is None:
        return None
    cut, found, seconds = tried
    arguments = target.place(model.arguments)
    _, before = compiled_cost(plain_jit(model.step, **model.jit_options).lower(*arguments))
    added = seconds / before - 1
    if added > _TIME_AT_MOST:
        fewer = int(cut.pieces * _TIME_AT_MOST / added)
        tried = _tried(model, target, total, fewer) if fewer > 1 else None
        if tried is None:
            return None
        cut, found, seconds = tried
        added = seconds / before - 1
        if added > _TIME_AT_MOST:
            return None
    region = max(cut.regions, key=lambda r: r.value_bytes)
    return PiecesProposal(
        value=region.value,
        value_bytes=region.value_bytes,
        line=region.value_line,
        pieces=cut.pieces,
        xla_bytes=total,
        bytes=found,
        added_time=added,
    )


def _tried(
    model: BuiltModel, target: Target, total: int, pieces: int | None
) -> tuple[FissionPlan, int, float] | None:
    """(what is cut, XLA's total, predicted seconds) in pieces; None where that saves little."""
    cuts: list[FissionPlan] = []
    jitted = plain_jit(in_pieces(model.step, pieces, cuts.append), **model.jit_options)
    try:
        traced = jitted.trace(*target.place(model.arguments))
    except InputError:  # nothing can be cut
        return None
    cut = cuts[-1]
    if cut.peak_before - cut.peak_after < _WORTH_WHILE * total:
        return None
    found, seconds = compiled_cost(traced.lower())
    return None if found > (1 - _WORTH_WHILE) * total else (cut, found, seconds)

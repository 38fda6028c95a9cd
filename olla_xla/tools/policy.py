"""A plan's scan residuals as a policy of `jax.checkpoint`, for use in a user's code.

A plan says which scan residuals are kept, by the elements of XLA's loops; a policy, by names that
`checkpoint_name` gave. Such names are not in XLA's module, so the residuals of XLA's loops are
aligned with those of the function's scans, in order, by sizes and operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from hlo.module import Module
from olla_xla.compile.checkpoint_policy import CheckpointPolicy, Unnamed
from olla_xla.compile.host_memory import maker
from olla_xla.memory.sources import source_line
from olla_xla.problem.plan import Plan
from olla_xla.remat.loops.pairs import ScanPair, pairs
from olla_xla.segments.trace import checkpoint_names, inlined
from olla_xla.tools.capture import capture
from olla_xla.tools.residual_rows import residual_rows

_RECOMPUTED, _KEPT, _SPILLED = range(3)
"""What a plan does with a residual; a name's is the largest of its residuals'."""


class _StackedOutput(NamedTuple):
    """A stacked output of a `jax.lax.scan`, which the scan of the backward pass may read.
    `bytes` of all iterations, `primitive` that makes it, `name` by `checkpoint_name`; "" for none.
    `enters`: whether it is an input of the body, without a name.
    """

    bytes: int
    primitive: str
    name: str
    enters: bool


class _Named(NamedTuple):
    """A value that `checkpoint_name` names in a scan's body.

    Attributes:
      name: its name. bytes: of all iterations together. primitive: that makes it, or "".
      lines: "file:line" of all frames that called the primitive.
    """

    name: str
    bytes: int
    primitive: str
    lines: frozenset[str]


class _Scan(NamedTuple):
    """A scan of the function: iterations (`length`), stacked outputs, named values of its body."""

    length: int
    stacked: list[_StackedOutput]
    named: list[_Named]


class _LoopResidual(NamedTuple):
    """An array that a while loop of XLA's module writes for a later one (a scan residual).
    `bytes` of all iterations, `operation` that makes it and its source `line`. `how` the plan has
    it: _RECOMPUTED, _KEPT on the device, or _SPILLED to host memory.
    """

    bytes: int
    operation: str
    line: str
    how: int


def checkpoint_policy(
    traced: jax.stages.Traced, lowered: jax.stages.Lowered, plan: Plan
) -> CheckpointPolicy:
    """Makes a `jax.checkpoint` policy from a plan: it keeps the scan residuals that the plan keeps.
    Scan residuals are arrays that a scan stores for its backward pass. `lowered` is compiled here.
    """
    return policy_of(traced.jaxpr, capture(lowered).view, plan)


def policy_of(jaxpr: Any, module: Module, plan: Plan) -> CheckpointPolicy:
    """Makes the policy that keeps, as nearly as names allow, the scan residuals that a plan keeps.
    Scan residuals are arrays that a scan stores for the scan of its backward pass. `jaxpr` is the
    function's, `jax.jit(f).trace(...).jaxpr`; `module` is as XLA scheduled it, and `plan` is of it.
    """
    scans = list(_scans(jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr))
    names: dict[str, int] = {}
    unnamed: list[Unnamed] = []
    found_for: dict[str, _Scan] = {}
    for loop, iterations, kept in _loops(module, plan):
        fitting = [scan for scan in scans if scan.length == iterations and scan.stacked]
        if not fitting:
            continue
        best = max(fitting, key=lambda scan: float(_table(kept, scan.stacked)[0, 0]))
        scans.remove(best)
        found_for[loop] = best
        for row, residual in _aligned(kept, best.stacked):
            if residual is not None and residual.enters and row.how != _SPILLED:
                continue
            if residual is not None and residual.name:
                names[residual.name] = max(names.get(residual.name, _RECOMPUTED), row.how)
            elif row.how:
                unnamed.append(Unnamed(row.bytes, row.operation, row.line, row.how == _SPILLED))
    for row in residual_rows(module, plan):
        if row.new:
            one = Unnamed(row.bytes, row.op_name.rpartition("/")[2], row.location)
            name = _name_of(one, found_for.get(row.loop))
            if name is None:
                unnamed.append(one)
            else:
                names[name] = max(names.get(name, _RECOMPUTED), _KEPT)
    again, saved, spilled = (
        tuple(name for name, fate in names.items() if fate == how)
        for how in (_RECOMPUTED, _KEPT, _SPILLED)
    )
    unnamed.sort(key=lambda one: -one.bytes)
    return CheckpointPolicy(saved, again, tuple(unnamed), spilled)


def _name_of(value: Unnamed, scan: _Scan | None) -> str | None:
    """Finds a value's `checkpoint_name` in a scan's body: the only one of its size and operation.
    Of several it takes the one of its source line; None if none or more than one is left.
    """
    named = [] if scan is None else scan.named
    alike = [n for n in named if (n.bytes, n.primitive) == (value.bytes, value.operation)]
    names = {n.name for n in alike}
    if len(names) > 1:
        names = {n.name for n in alike if value.line in n.lines}
    return names.pop() if len(names) == 1 else None


def _loops(module: Module, plan: Plan) -> Iterator[tuple[str, int, list[_LoopResidual]]]:
    """Yields (name, iterations, arrays) of while loops that write arrays which a later loop reads.
    Each array says whether the plan recomputes it, keeps it or moves it to host memory.
    """
    records = {record[:2]: record for record in plan.loops}
    for pair in pairs(module, plan.target):
        record = records.get((pair.writer.i.name, pair.reader.i.name))
        gone = frozenset(record.dropped) if record is not None else frozenset()
        yield pair.writer.i.name, pair.writer.iterations, _stacked(pair, gone)


def _stacked(pair: ScanPair, gone: frozenset[int]) -> list[_LoopResidual]:
    kept = []
    for residual in sorted(pair.scan_residuals, key=lambda residual: residual.written):
        made = maker(pair, residual)
        op_name = made.op_name or residual.update.i.op_name
        line = source_line(made) or source_line(residual.update.i)
        operation = op_name.rpartition("/")[2]
        how = _SPILLED if residual.whole.is_host else _KEPT
        how = _RECOMPUTED if residual.written in gone else how
        kept.append(_LoopResidual(residual.whole.bytes, operation, line, how))
    return kept


def _scans(jaxpr: Any) -> Iterator[_Scan]:
    """Yields a _Scan for each scan equation of a jaxpr, also those inside other equations."""
    for equation in inlined(jaxpr).equations:
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _scans(inner)
        if equation.primitive.name == "scan":
            yield _scan(equation)


def _scan(scan: Any) -> _Scan:
    """Reads a scan's stacked outputs, in order, and the named values of its body."""
    body, length = scan.params["jaxpr"], scan.params["length"]
    body = getattr(body, "jaxpr", body)
    equations, outputs, _ = inlined(body)
    made = {id(out): equation for equation in equations for out in equation.outvars}
    names, named = checkpoint_names(equations), []
    for equation in equations:
        if equation.primitive.name == "name":
            maker, aval = made.get(id(equation.invars[0])), equation.outvars[0].aval
            primitive = "" if maker is None else maker.primitive.name
            name, size = equation.params["name"], length * _bytes(aval)
            named.append(_Named(name, size, primitive, _lines(maker)))
    stacked = []
    for outer, inner in zip(scan.outvars, outputs, strict=True):
        if tuple(outer.aval.shape) != (length, *inner.aval.shape):
            continue  # a carry
        maker = made.get(id(inner))
        while maker is not None and maker.primitive.name in ("name", "device_put"):
            maker = made.get(id(maker.invars[0]))
        primitive = "" if maker is None else maker.primitive.name
        own = names.get(id(inner), "")
        stacked.append(
            _StackedOutput(_bytes(outer.aval), primitive, own, maker is None and not own)
        )
    return _Scan(length, stacked, named)


def _bytes(aval: Any) -> int:
    """Number of bytes of an array, from the shape and dtype of its abstract value."""
    return int(np.prod(aval.shape)) * aval.dtype.itemsize


def _lines(equation: Any) -> frozenset[str]:
    traceback = None if equation is None else equation.source_info.traceback
    frames = () if traceback is None else traceback.frames
    return frozenset(f"{frame.file_name}:{frame.line_num}" for frame in frames)


def _fit(row: _LoopResidual, residual: _StackedOutput) -> float:
    """Score for an array of XLA's while loop to be that stacked output of a scan.
    It is 0 if sizes differ, 2 if operations agree, 1 for an input of the body, else 0.1.
    """
    if row.bytes != residual.bytes:
        return 0.0
    if residual.enters:
        return 1.0
    return 2.0 if row.operation == residual.primitive else 0.1


def _table(
    rows: Sequence[_LoopResidual], residuals: Sequence[_StackedOutput]
) -> NDArray[np.float64]:
    """Table [rows + 1, residuals + 1]: entry i, j is the best sum of scores (`_fit`) of pairs that
    match rows[i:], arrays of XLA's loop, with residuals[j:], outputs of a scan, in order.
    """
    best = np.zeros((len(rows) + 1, len(residuals) + 1))
    for i in range(len(rows) - 1, -1, -1):
        for j in range(len(residuals) - 1, -1, -1):
            fit = _fit(rows[i], residuals[j])
            both = best[i + 1, j + 1] + fit if fit else 0.0
            best[i, j] = max(best[i + 1, j], best[i, j + 1], both)
    return best


def _aligned(
    rows: Sequence[_LoopResidual], residuals: Sequence[_StackedOutput]
) -> Iterator[tuple[_LoopResidual, _StackedOutput | None]]:
    """Pairs arrays of XLA's loop with a scan's stacked outputs, in order, for the best score.
    Yields (array, output; or None where it has no counterpart).
    """
    best, j = _table(rows, residuals), 0
    for i, row in enumerate(rows):
        while j < len(residuals) and best[i, j + 1] == best[i, j]:
            j += 1
        fits = j < len(residuals) and _fit(row, residuals[j]) > 0
        if fits and best[i, j] == best[i + 1, j + 1] + _fit(row, residuals[j]):
            yield row, residuals[j]
            j += 1
        else:
            yield row, None

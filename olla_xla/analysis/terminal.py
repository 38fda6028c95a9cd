"""An analysis as tables, for terminals and notebooks."""

from collections.abc import Mapping
from html import escape
from typing import NamedTuple

from olla_xla.analysis.analysis import Analysis, peak_rows
from olla_xla.analysis.category import Category
from olla_xla.analysis.donation import DonationAudit, DonationOutcome, DonationRow
from olla_xla.analysis.leaves import to_donate
from olla_xla.analysis.live_tensor import LiveTensor
from olla_xla.analysis.memory_view import MemoryView
from olla_xla.analysis.text_table import megabytes, text_table, wrapped
from olla_xla.memory.sources import short_line

_WORTH_TELLING = 1 << 20
"""Bytes of padding, from which on it is told."""

_LEAST_SHOWN = 2**20 // 20
"""Bytes that are 0.1 MB in print."""

_WORTH_SAYING = 0.01
"""Part of the total that results which learn nothing take, from which on they are told."""

_MUCH_LEFT = 0.01
"""Part of the bound that an order lies above it, from which on a plan is pointed at."""

TENSOR_HEADINGS = ("MB", "category:", "shape:", "what:")

_NOTEBOOK = 120
"""Characters of a line in a notebook."""


def html(analysis: Analysis) -> str:
    """The summary and tables of an analysis as an HTML `pre` element in a monospaced font."""
    style = "font-family: ui-monospace, monospace; line-height: 1.3; white-space: pre"
    return f'<pre style="{style}">{escape(text(analysis, width=_NOTEBOOK))}</pre>'


def text(analysis: Analysis, count: int = 15, width: int | None = 80) -> str:
    """The summary lines and tables of an analysis as plain text.

    Args:
      analysis: to show. count: rows at most of each table but that of categories.
      width: characters of a line at most; None: no limit.
    """
    tables = tables_of(analysis, count)
    lines = [wrapped(line, width) for line in headline(analysis)]
    parts = ["\n".join(lines)]
    for table in tables:
        body = f"\n{text_table(table.headings, table.rows, width)}" if table.rows else ""
        parts.append(f"{wrapped(table.title, width)}{body}")
    return "\n\n".join(parts)


class TextTable(NamedTuple):
    """A table of strings; a heading that ends in ":" is left-aligned and shown without it."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tables_of(analysis: Analysis, count: int = 15) -> list[TextTable]:
    """Makes all tables of an analysis; each but that of categories has at most `count` rows."""
    last = analysis.views[-1]
    parts = [_categories(analysis), _tensors(last, count)]
    if last.padding > _WORTH_TELLING:
        parts.append(_padding(last, count))
    parts += [_sums("module", last.by_module(), last, count)]
    parts += [_sums("line", last.by_line(), last, count)]
    if analysis.loops:
        parts.append(_loops(analysis, count))
    if analysis.donation is not None:
        parts.append(_donation(analysis.donation, count))
    return parts


def headline(analysis: Analysis) -> list[str]:
    """Lines above the tables: title, totals, lower bound, then what is notable or would help."""
    lines = [analysis.title + of_devices(analysis.devices)]
    for view in analysis.views:
        kind = "assigned" if view.assigned else "predicted"
        at = f" at {short_line(view.operator_line)}" if view.operator_line else ""
        lines.append(
            f"{view.name}: {megabytes(view.total_bytes)} MB {kind}, "
            f"{megabytes(view.live_bytes)} MB in use at the peak, step {view.step:,} of "
            f"{view.steps:,} ({view.operator}{at})"
        )
    if analysis.available_bytes is not None:
        over = analysis.xla.total_bytes - analysis.available_bytes
        lines.append(
            f"XLA refuses the step: the device has {megabytes(analysis.available_bytes)} MB, "
            f"which is {megabytes(over)} MB too little"
        )
    if analysis.ran_again is not None:
        lines.append(str(analysis.ran_again))
    above = f"{analysis.views[-1].name} is {from_bound(analysis.gap)} that"
    lines.append(
        f"no order of {bounded(analysis)} needs less than "
        f"{megabytes(analysis.lower_bound_bytes)} MB ({above}{_unsearched(analysis)})"
    )
    if (size := analysis.xla.constant_bytes) >= _LEAST_SHOWN:
        lines.append(f"constants take {megabytes(size)} MB, which no total includes")
    last = analysis.views[-1]
    if others := other_memories(last):
        lines.append(f"other memories hold {others}, which no total includes")
    if last.padding > _WORTH_TELLING:
        lines.append(
            f"{megabytes(last.padding)} MB at the peak are padding, as arrays take whole tiles"
        )
    fixed = analysis.untrained
    if fixed is not None and fixed.bytes >= max(_LEAST_SHOWN, _WORTH_SAYING * last.total_bytes):
        rest = len(fixed.paths) - 1
        lines.append(
            f"{megabytes(fixed.bytes)} MB of outputs are not trained ({fixed.paths[0]}"
            f"{f' and {rest:,} more' if rest else ''}): they are always zero, or no gradient "
            "reaches them; leave these arrays out of the derivative and the optimizer"
        )
    if analysis.remedy is not None:
        lines.append(analysis.remedy.sentence())
    return lines


def bounded(analysis: Analysis) -> str:
    """Whose operators the lower bound is for: "XLA's operators", or "the plan's operators"."""
    changed = analysis.plan is not None and analysis.plan.is_rewritten
    return f"{'the plan' if changed else 'XLA'}'s operators"


def _unsearched(analysis: Analysis) -> str:
    """A suffix that advises to plan the step; "" if it has a plan, or is near the lower bound."""
    if analysis.plan is not None or analysis.gap < _MUCH_LEFT:
        return ""
    return "; planning the step shows how much of this excess a better order saves"


def of_devices(devices: int) -> str:
    """Suffix of titles, ", memory of one of 8 devices", as sizes are of one; "" for one device."""
    return f", memory of one of {devices} devices" if devices > 1 else ""


def from_bound(gap: float) -> str:
    """A gap to the lower bound (total / bound - 1) as text, such as "1.2 % above".
    Only a total with other operators than XLA's, as with recomputation, can be below it.
    """
    return f"{abs(100 * gap):.1f} % {'below' if gap < 0 else 'above'}"


def other_memories(view: MemoryView) -> str:
    """The bytes assigned in the device's other memories, such as "12.0 MB of VMEM"; or ""."""
    return ", ".join(f"{megabytes(size)} MB of {name}" for name, size in view.elsewhere.items())


def _categories(analysis: Analysis) -> TextTable:
    names = [f"{view.name}, MB" for view in analysis.views]
    rows = [(name, *(megabytes(size) for size in sizes)) for name, sizes in peak_rows(analysis)]
    headings = ("category:", *names, "in every order, MB")
    return TextTable("What memory is used for at the peak", headings, rows)


def _tensors(view: MemoryView, count: int) -> TextTable:
    title, rows = tensor_rows(view, count)
    share = 100 * view.found_share
    title += f" of {view.name}; {share:.1f} % of the bytes have a known source line or argument"
    return TextTable(title, TENSOR_HEADINGS, rows)


def tensor_rows(view: MemoryView, count: int) -> tuple[str, list[tuple[str, ...]]]:
    """(title, rows): the `count` largest groups of tensors, alike in category, shape, origin."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    tensors = [t for t in view.tensors if t.category is not Category.UNUSED]
    for t in tensors:
        kinds.setdefault((t.category.short, t.shape, _made_by(t)), []).append(t.bytes)
    groups = sorted(kinds.items(), key=lambda kind: -sum(kind[1]))
    rows = [
        (megabytes(sum(s), 2), kind, f"{shape} x {len(s)}" if len(s) > 1 else shape, made)
        for (kind, shape, made), s in groups[:count]
    ]
    total = f"{len(groups):,} kinds of tensors ({len(tensors):,} in all)"
    return f"{len(rows)} largest of {total} at the peak", rows


def _made_by(tensor: LiveTensor) -> str:
    """The text for a tensor: its argument or line, with its operation, as "model.py:12 (tanh)"."""
    name = tensor.op_name.split("/")[-1].split("[")[0]
    named = name and not tensor.argument and short_line(tensor.line)
    return f"{what(tensor)} ({name})" if named else what(tensor)


def _padding(view: MemoryView, count: int) -> TextTable:
    """Table of the `count` tensors with most bytes of padding to whole tiles at the peak (TPU)."""
    padded = [t for t in view.tensors if t.padding]
    padded.sort(key=lambda t: (-t.padding, t.name))
    rows = [
        (
            megabytes(t.bytes, 2),
            megabytes(t.padding, 2),
            f"{t.bytes / (t.bytes - t.padding):,.1f}",
            t.shape,
            f"{t.tighter} {megabytes(t.tighter_bytes, 2)}" if t.tighter else "",
            what(t),
        )
        for t in padded[:count]
    ]
    title = f"Padding of arrays to whole tiles: {len(rows)} largest of {len(padded):,} at the peak"
    headings = ("MB", "padding", "times", "shape:", "tighter, MB:", "what:")
    return TextTable(title, headings, rows)


def what(tensor: LiveTensor) -> str:
    """A tensor as text: its argument's path or source line, else its op name, own name or `why`."""
    line = short_line(tensor.line)
    if tensor.argument or line:
        return tensor.argument or line
    return "/".join(tensor.op_name.split("/")[-3:]) or tensor.name or tensor.why


def where(tensor: LiveTensor) -> str:
    """A tensor as text: argument path, source line and caller; or why these are unknown."""
    line = short_line(tensor.line)
    if tensor.caller:
        line = f"{line} (from {short_line(tensor.caller)})"
    if line and tensor.is_argument:
        line = f"read at {line}"
    parts = [tensor.argument, line]
    return ", ".join(part for part in parts if part) or tensor.why


def _sums(name: str, sums: Mapping[str, int], view: MemoryView, count: int) -> TextTable:
    rows = [
        (
            megabytes(size),
            f"{100 * size / max(view.total_bytes, 1):.1f}",
            short_line(key) or "(none)",
        )
        for key, size in list(sums.items())[:count]
    ]
    return TextTable(f"By {name}", ("MB", "%", f"{name}:"), rows)


def _loops(analysis: Analysis, count: int) -> TextTable:
    rows = [
        (
            megabytes(sum(s.bytes for s in loop.stacks)),
            str(len(loop.stacks)),
            "?" if loop.trips is None else f"{loop.trips:,}",
            short_line(loop.line) or loop.name,
            f"{loop.stacks[0].shape} {short_line(loop.stacks[0].line)}" if loop.stacks else "",
        )
        for loop in analysis.loops[:count]
    ]
    return TextTable("Loops", ("MB", "arrays", "trips", "what:", "largest array:"), rows)


def _donation(donation: DonationAudit, count: int) -> TextTable:
    counts = [
        f"{donation.count(o)} {o} ({megabytes(donation.bytes(o))} MB)"
        for o in DonationOutcome
        if donation.count(o)
    ]
    none = "none would save memory"
    title = f"Donation: {donation.requested} requested; {', '.join(counts) or none}"
    causes: dict[tuple[DonationOutcome, str], list[DonationRow]] = {}
    for row in donation.trouble:
        together = row.outcome is DonationOutcome.POSSIBLE
        causes.setdefault((row.outcome, "" if together else row.why), []).append(row)
    rows = [
        (
            megabytes(sum(row.bytes for row in alike), 2),
            f"{alike[0].path} {alike[0].type}" + (f" and {n:,} more" if n else ""),
            str(outcome),
            f"outputs of the same types take new memory; {to_donate(alike)} saves that if the "
            "caller no longer needs the arguments"
            if n and outcome is DonationOutcome.POSSIBLE
            else alike[0].why,
        )
        for (outcome, _), alike in list(causes.items())[:count]
        for n in [len(alike) - 1]
    ]
    return TextTable(title, ("MB", "what:", "outcome:", "why:"), rows)

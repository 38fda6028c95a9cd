"""Formats a plan's figures as text: in one line, and as a table."""

from olla_xla.problem.plan_parts import HINTED_OVERHEAD, PlanFields, PlanStatus

_MB = 2**20

_NOTEWORTHY = 0.9
"""Part of the total that recomputation must get below to be told of."""


def in_a_line(plan: PlanFields) -> str:
    """Formats total, XLA's total, bound, time: "16.1 MB instead of 18.8, bound 16.1, 3.0 s".

    XLA's total is left out where its order is kept, and the lower bound where the total lies below
    it (`of_the_bound`). Refusals are added, if any.
    """
    total, bound = plan.total_bytes, plan.lower_bound_bytes
    rest = f"bound {_mb(bound)}, " if bound <= total else ""
    rest += f"{plan.seconds:.1f} s"
    rest += f", {of_refusals(plan.refused, plan.proposed)}" if plan.refused else ""
    if plan.keeps_xla:
        return f"{_mb(total)} MB, XLA's own order, {rest}"
    return f"{_mb(total)} MB instead of {_mb(plan.xla_bytes)}, {rest}"


def table(plan: PlanFields) -> str:
    """Formats a plan's figures as lines of three columns; there is no newline at the end."""
    kind = "predicted" if plan.assigned_bytes is None else "assigned"
    xla_kind = "predicted" if plan.xla_bytes == plan.xla_predicted_bytes else "assigned"
    if plan.keeps_xla:
        rows = [("XLA's own order, kept", f"{_mb(plan.total_bytes)} MB", kind)]
    else:
        change = 100 * (plan.total_bytes / max(plan.xla_bytes, 1) - 1)
        rows = [
            ("XLA's own order", f"{_mb(plan.xla_bytes)} MB", xla_kind),
            ("planned", f"{_mb(plan.total_bytes)} MB", f"{kind}; {change:+.1f} %"),
        ]
    searched = was_searched(plan)
    if searched:
        rows += [
            ("lifetime peak", f"{_mb(plan.peak_bytes)} MB", "predicted for the order in use"),
            ("least lifetime peak", f"{_mb(plan.least_peak_bytes)} MB", "of the best order found"),
        ]
    rows.append(("lower bound", f"{_mb(plan.lower_bound_bytes)} MB", of_the_bound(plan)))
    if searched:
        rows += [
            ("lifetime gap", f"{100 * plan.gap:.2f} %", "excess of least peak over lower bound"),
            ("assignment loss", f"{100 * plan.loss:.2f} %", f"{kind} total above the least peak"),
        ]
    rows += [*of_the_places(plan), *of_the_host(plan)]
    quiet = plan.without_rematerialization
    rows += [("XLA's rematerialization", "off", "not needed: the plan fits")] if quiet else []
    bound = sum(map(len, plan.aliases.values()))
    rows += [("results over operands", f"{bound:,}", "")] if bound else []
    rows += [("copies before loops left out", f"{len(plan.sunk):,}", "")] if plan.sunk else []
    rows += [("second arrays left out", f"{len(plan.joined):,}", "")] if plan.joined else []
    stacks = plan.recomputed_residuals
    rows += [("scan residuals recomputed", f"{stacks:,}", "")] if stacks else []
    new = plan.added_residuals
    rows += [("scan residuals added", f"{new:,}", "with fewer bytes")] if new else []
    every = " ".join(f"{k:,}" for k in dict.fromkeys(r.every for r in plan.loops if r.every))
    rows += [("iterations per kept state", every, "run again")] if every else []
    rows += [("computed again", f"{len(plan.clones):,}", "instructions")] if plan.clones else []
    if plan.step_seconds:
        more = f"predicted: {1e3 * plan.added_seconds:.2f} ms on {1e3 * plan.step_seconds:.2f} ms"
        rows.append(("added time", f"{100 * plan.overhead:.1f} %", more))
    if plan.exposed_seconds:
        rows.append(("of it, exposed", f"{1e3 * plan.exposed_seconds:.2f} ms", "of transfers"))
    rows += [*of_recomputation(plan), *of_the_path(plan)]
    rows += [
        ("status", status_word(plan) if searched else "not searched", _stopped(plan)),
        ("planning", f"{plan.seconds:.1f} s", f"{plan.steps:,} steps, seed {plan.seed}"),
    ]
    first, second = (max(len(row[k]) for row in rows) for k in range(2))
    lines = [f"{name:{first}}  {value:>{second}}  {note}".rstrip() for name, value, note in rows]
    lines += [of_refusals(plan.refused, plan.proposed)] if plan.refused else []
    return "\n".join([f"{plan.module}, {plan.target}", *lines])


def status_word(plan: PlanFields) -> str:
    """Returns the status; instead of "optimal", how far the total is above the bound, if it is."""
    above = plan.total_bytes - plan.lower_bound_bytes
    if plan.status != PlanStatus.OPTIMAL or above <= 0:
        return plan.status
    return f"within {max(100 * above / max(plan.lower_bound_bytes, 1), 0.01):.2f} %"


def of_refusals(refused: int, proposed: int) -> str:
    """Says how many of the planner's proposed changes the referee, which checks them, refused."""
    return f"{refused:,} of {proposed:,} choices refused by the check"


def _stopped(plan: PlanFields) -> str:
    """Says where the order comes from, and why the search ended, or that there was none."""
    if not was_searched(plan):
        return "another order could save almost nothing"
    order = "XLA's order" if plan.source == "xla" else f"order found by {plan.source}"
    return f"{order}; search stopped by: {plan.stopped_by.replace('_', ' ')}"


def of_the_bound(plan: PlanFields) -> str:
    """Says for which orders of which module the plan's lower bound holds.

    A total may lie below it where XLA moves values to another memory after its schedule.
    """
    if min(plan.total_bytes, plan.xla_bytes) < plan.lower_bound_bytes:
        return "no order needs less memory before XLA moves values to another memory"
    loops = ("changed loops",) if plan.loops or plan.sunk or plan.joined else ()
    changes = [*loops, *(("recomputed values",) if plan.clones else ())]
    if not changes:
        return "no order needs less memory; recomputation can reduce it"
    return f"no order needs less memory with these {' and '.join(changes)}"


def what_would_help(plan: PlanFields) -> str:
    """Says what the step would take with `max_overhead`; "" if not known or not 10 % less."""
    if not 0 < plan.recomputed_bytes <= _NOTEWORTHY * plan.total_bytes:
        return ""
    setting = f"max_overhead={HINTED_OVERHEAD:g}"
    return (
        f"{setting} takes about {_mb(plan.recomputed_bytes)} MB instead of {_mb(plan.total_bytes)}"
    )


def of_recomputation(plan: PlanFields) -> list[tuple[str, str, str]]:
    """Table rows: what `max_overhead` would save, or else plans with less added time, if any."""
    if hint := what_would_help(plan):
        return [("what would help", "", hint)]
    return [
        ("with less added time", f"{_mb(size)} MB", f"{100 * seconds / plan.step_seconds:.1f} %")
        for seconds, size in plan.front[:-1]
        if seconds > 0
    ]


def of_the_places(plan: PlanFields) -> list[tuple[str, str, str]]:
    """Table row on buffers placed by olla_xla: bytes saved, or why not done; none by default."""
    if plan.placement_note:
        return [("placement", "XLA's", plan.placement_note)]
    if plan.placement != "own":
        return []
    return [("placement", "own", f"olla_xla's addresses save {plan.recovered_bytes:,} bytes")]


def of_the_host(plan: PlanFields) -> list[tuple[str, str, str]]:
    """Table rows on host memory: its total and the three largest scan residuals; or none."""
    rows = [
        (f"  {array}", f"{_mb(size)} MB", f"{line}, copied out in {writer}, back in {reader}")
        for array, size, line, writer, reader in plan.host_arrays[:3]
    ]
    total = ("in host memory", f"{_mb(plan.host_bytes)} MB", "assigned by XLA; in no other total")
    return [total, *rows] if plan.host_bytes else []


def of_the_path(plan: PlanFields) -> list[tuple[str, str, str]]:
    """Table row on the predicted time of a run on a GPU's streams, beside XLA's; or none."""
    if not plan.xla_path_seconds:
        return []
    note = f"predicted; {100 * plan.slowdown:+.2f} %"
    before = f"against {1e3 * plan.xla_path_seconds:.3f} ms in XLA's own order"
    return [("time of a run", f"{1e3 * plan.path_seconds:.3f} ms", f"{note} {before}")]


def was_searched(plan: PlanFields) -> bool:
    """Whether the planner searched for an order; not if one could save next to nothing."""
    return plan.peak_bytes > 0


def _mb(size: int) -> str:
    """Formats bytes as MB: to a tenth, below 1 MB to three digits; never with an exponent."""
    value = size / _MB
    if value >= 1 or not value:
        return f"{value:,.1f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.3f}"

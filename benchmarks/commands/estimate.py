"""Estimates the memory of a train step or of any function without compiling it.

The unfused program is run by eager execution through a simulated caching allocator, as frameworks
do, planned by the static planners of MXNet, placed by best fit from its profile, and, with
--time_limit, ordered and placed as OLLA does. --model names a train step; --function a function of
arrays, whose --arguments are given as shapes: training is its gradient by the first argument.
With --compile a train step is compiled too: XLA's own total, and ours. Those are fused.

With --added_edges the dependencies that --planner adds to those of the data flow, which an engine
that runs operators in parallel must keep, are written with the graph: as GraphML, which
`olla_xla graph --graph=FILE` orders and draws.

With --models one table has a line for each of several; --out keeps their figures, and what it has
already is not estimated again. With --stored what such files have is printed, of a step that is in
several what the last one has.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.driver import Column, Flags, count, measured, table_of
from benchmarks.growing_file import read_text
from benchmarks.papers.eager.conflicts import with_plan
from benchmarks.papers.eager.estimate import (
    MODES,
    PLANNERS,
    Estimate,
    Estimates,
    ModelEstimates,
    assignment,
    estimate,
    from_json,
    of_mode,
    to_json,
)
from examples.zoo import ZOO
from hlo.module import module_from_bytes
from hlo.text import from_stablehlo
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, megabytes, percent
from olla_xla.errors import InputError, OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.whole_file import write_text
from olla_xla.tools import models
from olla_xla.tools.step import plan_model
from olla_xla.tools.to_networkx import write_graphml

_Key = tuple[str, int, str, str, str]
"""As `ModelEstimates.key`."""
_SHAPE = re.compile(r"([a-z]+[0-9]*)\[([0-9,\s]*)\]")
_SHORT = {"f": "float", "i": "int", "u": "uint", "c": "complex", "bf": "bfloat", "pred": "bool"}


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    shared.define_model(values)
    define.text("function", None, "package.module:function, a function of arrays.")
    define.text("arguments", None, "Shapes of its arguments, as f32[8,128] i32[8].")
    define.one_of(
        "mode", "training", MODES, "inference: without the backward pass and what depends on it."
    )
    define.real(
        "time_limit", 20.0, "Seconds for OLLA's order, before its places; 0: left out.", least=0.0
    )
    define.switch(
        "compile", False, "Whether a train step is compiled by XLA, and planned by us, as well."
    )
    define.one_of("target", "cpu", targets.TARGETS, "What --compile compiles for.")
    define.text("added_edges", None, "GraphML file for the graph with what --planner adds.")
    define.one_of("planner", "in place + sharing", PLANNERS, "Whose plan --added_edges shows.")
    define.names("models", None, "Several models, or zoo for those of the benchmarks.")
    define.text("out", None, "JSON file for what --models finds.")
    define.names("stored", None, "JSON files that --out wrote, to be printed.")
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Lowers, estimates and prints the table."""
    for path in (values.out, values.added_edges):
        files.check_writable(path)
    if values.stored is not None:
        rows = [row for path in values.stored for row in from_json(read_text(path))]
        return _print_meeting(values, list({row.key[:-1]: row for row in rows}.values()))
    if values.models is not None:
        return _several(values)
    if (values.model is None) == (values.function is None):
        raise InputError("give either --model=NAME or --function=package.module:function")
    if (values.arguments is not None) != (values.function is not None):
        raise InputError("--arguments goes with --function: --arguments='f32[8,128] i32[8]'")
    if values["compile"].value and values.model is None:
        raise InputError("--compile goes with --model; a function is only estimated")
    targets.prepare_environment(values.target)

    with Progress() as progress:
        progress.stage("loading JAX and the model")
        if values.model:
            name = f"{values.model}, batch {values.batch_size}, {values.optimizer}"
            found = _estimated(values, values.model, progress)
        else:
            name, lowered, mode = _function(values)
            progress.stage("estimating")
            found = _of(lowered, mode, values)
    shared.print_table(values, estimate_table(found, f"{name}, {values.mode}"))
    return 0


def _several(values: flags.FlagValues) -> int:
    """Estimates many models, one after the other, and prints them in one table."""
    if values.model is not None or values.function is not None:
        raise InputError("--models goes without --model and --function")
    if values.added_edges is not None:
        raise InputError("--added_edges is of one step; give --model or --function")
    targets.prepare_environment(values.target)
    out = values.out
    earlier = from_json(read_text(out)) if out is not None and Path(out).exists() else []
    target = values.target if values["compile"].value else ""
    wanted = [
        (name, values.batch_size, values.optimizer, values.mode, target)
        for name in (ZOO if values.models == ["zoo"] else values.models)
    ]
    known = {row.key for row in earlier}

    def estimated(key: _Key, progress: Progress) -> ModelEstimates:
        return ModelEstimates(*key, _estimated(values, key[0], progress))

    def write(rows: list[ModelEstimates]) -> None:
        if out is not None:
            write_text(out, to_json([*earlier, *rows]))

    missing = [key for key in wanted if key not in known]
    rows, failed = measured(missing, estimated, name=lambda key: key[0], done=write)
    _print_meeting(values, [row for row in (*earlier, *rows) if row.key in wanted])
    return 1 if failed else 0


def _print_meeting(values: flags.FlagValues, rows: Sequence[ModelEstimates]) -> int:
    if not rows:
        raise OllaError("nothing was estimated")
    for table in (meeting_table(rows), edges_table(rows)):
        shared.print_table(values, table)
    return 0


def _estimated(values: flags.FlagValues, name: str, progress: Progress) -> Estimates:
    """The estimates of a model, compiled as well if that is asked for."""
    import jax

    model = models.build(name, batch_size=values.batch_size, optimizer=values.optimizer)
    with models.tracing(name):
        lowered = jax.jit(model.step, **model.jit_options).lower(*model.arguments)
    progress.stage(f"{name}: estimating")
    found = _of(lowered, values.mode, values)
    if not values["compile"].value:
        return found
    return dataclasses.replace(found, rows=(*found.rows, *_compiled(values, name, progress)))


def _of(lowered: Any, mode: str, values: flags.FlagValues) -> Estimates:
    """Every baseline of a lowered function; its graph with a plan's dependencies, if asked for."""
    module = module_from_bytes(from_stablehlo(lowered.as_text(debug_info=True)))
    if values.added_edges is not None:
        found = of_mode(module, mode)
        write_graphml(values.added_edges, with_plan(found.graph, assignment(found, values.planner)))
    return estimate(module, mode, time_limit=values.time_limit or None)


def _compiled(values: flags.FlagValues, model_name: str, progress: Progress) -> list[Estimate]:
    """XLA's own total and ours, of the step as compiled; both assigned."""
    model = models.build(model_name, batch_size=values.batch_size, optimizer=values.optimizer)
    result = plan_model(
        model,
        targets.target(values.target),
        PlanOptions(time_limit=values.time_limit or None),
        stage=progress.stage,
        progress=progress,
        compare=False,
    )
    name = f"fused for {values.target}"
    return [
        Estimate(f"XLA, {name}", result.plan.xla_bytes),
        Estimate(f"olla_xla, {name}", result.report.assigned_bytes),
    ]


def _function(values: flags.FlagValues) -> tuple[str, Any, str]:
    """The same of a function; as it stands it is all forward."""
    import jax

    function = models.load(values.function)
    arguments = _shapes(values.arguments)
    if values.mode == "training":
        function = jax.value_and_grad(function)
    with models.tracing(values.function):
        return values.function, jax.jit(function).lower(*arguments), "training"


def _shapes(text: str) -> list[Any]:
    import jax
    import jax.numpy as jnp

    found = []
    rest = _SHAPE.sub("", text)
    if rest.strip(" ,"):
        raise InputError(f"--arguments: cannot read {rest.strip(' ,')!r}; write f32[8,128] i32[8]")
    for name, dimensions in _SHAPE.findall(text):
        letters = name.rstrip("0123456789")
        full = _SHORT.get(letters, letters) + name[len(letters) :]
        try:
            dtype = jnp.dtype(full)
        except TypeError as error:
            raise InputError(f"--arguments: {name!r} is no type; use f32, bf16, i32") from error
        shape = tuple(int(d) for d in dimensions.split(",") if d.strip())
        found.append(jax.ShapeDtypeStruct(shape, dtype))
    if not found:
        raise InputError("--arguments names no shape; write f32[8,128] i32[8]")
    return found


def estimate_table(found: Estimates, title: str) -> Table:
    """A line for each baseline; sizes in MB."""
    about = (
        f"{title}; {found.operators:,} operators; arguments {megabytes(found.argument_bytes)}, "
        f"results {megabytes(found.output_bytes)}, gradients {megabytes(found.gradient_bytes)}; "
        "sizes in MB of 2^20 bytes"
    )
    eager = found.rows[0].total_bytes or 1
    columns = (
        Column("planner:", "planner"),
        Column("total", "total_bytes", megabytes),
        Column(
            "of eager %",
            lambda row: None if row.total_bytes is None else percent(row.total_bytes / eager, 1),
        ),
        Column("reserved", "reserved_bytes", megabytes),
        Column("unused at live peak %", "peak_fragmentation", percent),
        Column("unused at growth %", "fragmentation", percent),
        Column("added edges", "added_edges", count),
    )
    return table_of(found.rows, columns, about)


def meeting_table(rows: Sequence[ModelEstimates]) -> Table:
    """A line for each model, a column for each planner; totals in MB."""
    planners = list(dict.fromkeys(r.planner for row in rows for r in row.found.rows))
    lines = []
    for row in rows:
        totals = {r.planner: r for r in row.found.rows}
        cells = [megabytes(totals[p].total_bytes) if p in totals else "-" for p in planners]
        first = totals[planners[0]].reserved_bytes if planners[0] in totals else None
        lines.append(
            (row.model, f"{row.found.operators:,}", megabytes(first), cells[0], *cells[1:])
        )
    return Table(
        headings=("model:", "operators", f"{planners[0]}, reserved", *planners),
        rows=lines,
        title=f"{_about(rows)}; totals in MB of 2^20 bytes; unfused but for the last columns",
    )


def edges_table(rows: Sequence[ModelEstimates]) -> Table:
    """A line for each model, a column for each planner that adds dependencies to some."""
    planners = list(
        dict.fromkeys(
            r.planner for row in rows for r in row.found.rows if r.added_edges is not None
        )
    )
    lines = []
    for row in rows:
        added = {r.planner: r.added_edges for r in row.found.rows}
        cells = ("-" if added.get(p) is None else f"{added[p]:,}" for p in planners)
        lines.append((row.model, f"{row.found.operators:,}", *cells))
    return Table(
        headings=("model:", "operators", *planners),
        rows=lines,
        title=f"{_about(rows)}; dependencies that each plan adds to those of the data flow",
    )


def _about(rows: Sequence[ModelEstimates]) -> str:
    """What the rows have in common, or all of what they have."""
    parts = {
        f"batch {row.batch_size}, {row.optimizer}, {row.mode}"
        + (f", compiled for {row.target}" if row.target else "")
        for row in rows
    }
    return " and ".join(sorted(parts))

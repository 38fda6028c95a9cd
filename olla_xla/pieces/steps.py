"""Runs the steps of a cut function: whole, in pieces, and loops that hold both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from olla_xla.pieces.graph import Graph
from olla_xla.pieces.loop import run_region
from olla_xla.pieces.region import AnyStep, Region
from olla_xla.pieces.run import call
from olla_xla.pieces.sharded import Devices
from olla_xla.segments.trace import function_of, is_variable


def run_steps(
    steps: Sequence[AnyStep],
    graph: Graph,
    values: Mapping[Any, Any],
    pieces: int,
    accumulate_dtype: Any,
    devices: Sequence[Devices | None] = (),
) -> list[Any]:
    """Evaluates a function that is cut into steps, of which regions run in pieces.

    Args:
      graph: the function's. values: of its inputs and constants, by variable.
      pieces, accumulate_dtype: as in `run_region`.
      devices: for each Region of `steps`, those over which its axis is sharded; () if none is.
    """
    names, sharded = dict(values), iter(devices)
    for step in steps:
        if isinstance(step, Graph):
            function = function_of(step.equations, step.inputs, step.outputs)
            made = function(*(names[v] for v in step.inputs))
            names.update(zip(step.outputs, made, strict=True))
        elif isinstance(step, Region):
            names.update(run_region(step, names, pieces, accumulate_dtype, next(sharded, None)))
        else:
            (e,) = step.equations
            functions = [_body(*body, pieces, accumulate_dtype) for body in step.bodies]
            given = [names[v] if is_variable(v) else v.val for v in e.invars]
            names.update(zip(e.outvars, call(e, functions, given), strict=True))
    return [names[v] if is_variable(v) else v.val for v in graph.outputs]


def _body(
    graph: Graph, steps: Sequence[AnyStep], pieces: int, accumulate_dtype: Any
) -> Callable[..., list[Any]]:
    def function(*values: Any) -> list[Any]:
        given = {**graph.constants, **dict(zip(graph.inputs, values, strict=True))}
        made = run_steps(steps, graph, given, pieces, accumulate_dtype)
        return [jnp.asarray(x, v.aval.dtype) for x, v in zip(made, graph.outputs, strict=True)]

    return function

"""The arrays that a compiled function takes and returns, by name, for the donation audit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental.layout import Format

from hlo.module import Module
from olla_xla.analysis.donation import Leaf

__all__ = ["leaves"]


def leaves(compiled: Any, module: Module) -> tuple[list[Leaf], list[Leaf]]:
    """What a compiled function takes and what it returns.

    Args:
      compiled: a `jax.stages.Compiled`. module: the one that it runs.
    """
    return _taken(compiled, module), _returned(compiled)


def _taken(compiled: Any, module: Module) -> list[Leaf]:
    infos = jax.tree_util.tree_leaves_with_path(compiled.args_info)
    formats = _flat(compiled.input_formats)
    # An argument that is not passed has neither layout nor sharding.
    passed = [f is not None and f.layout is not None for f in formats]
    parameters = module.entry.parameters
    number = len(parameters) - sum(passed)  # constants come before the arguments
    found = []
    for (path, info), form, is_passed in zip(infos, formats, passed, strict=True):
        name = _path(path)
        if is_passed:
            name = parameters[number].op_name or name
        found.append(_leaf(name, info, form, info.donated, number if is_passed else None))
        number += is_passed
    return found


def _returned(compiled: Any) -> list[Leaf]:
    infos = jax.tree_util.tree_leaves_with_path(compiled.out_info)
    formats = _flat(compiled.output_formats)
    return [
        _leaf("result" + jax.tree_util.keystr(path), info, form, False, number)
        for number, ((path, info), form) in enumerate(zip(infos, formats, strict=True))
    ]


def _flat(formats: Any) -> list[Any]:
    return jax.tree.leaves(formats, is_leaf=lambda f: f is None or isinstance(f, Format))


def _path(path: Sequence[Any]) -> str:
    """The path of an argument whose name nobody wrote down: (args, kwargs) come first."""
    return "argument " + jax.tree_util.keystr(tuple(path[1:]))


def _leaf(path: str, info: Any, form: Any, donated: bool, number: int | None) -> Leaf:
    layout = "" if form is None else str(getattr(form.layout, "major_to_minor", ""))
    try:
        width = jax.dtypes.itemsize_bits(info.dtype)
    except (AttributeError, TypeError):
        width = 8 * info.dtype.itemsize
    return Leaf(
        path=path,
        shape=tuple(info.shape),
        dtype=str(info.dtype),
        bytes=math.prod(info.shape) * width // 8,
        donated=donated,
        number=number,
        layout=layout,
        sharding=None if form is None else form.sharding,
    )

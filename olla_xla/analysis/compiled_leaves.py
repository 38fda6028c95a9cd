"""The arrays that a compiled function takes and returns, by name, and which to donate."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import math
from collections.abc import Collection, Sequence
from typing import Any

import jax

from hlo.module import HloError, Module, module_from_bytes
from olla_xla.analysis import reading
from olla_xla.analysis.leaves import Leaf, not_donated, to_donate
from olla_xla.compile.accounting import assigned_bytes

_logger = logging.getLogger("olla_xla")

_NOTEWORTHY, _NOTEWORTHY_SHARE = 2**20, 0.01
"""Bytes, and part of the total, below which there is no hint."""


def leaves(
    compiled: Any, module: Module | None = None, static: Collection[int] = ()
) -> tuple[list[Leaf], list[Leaf]]:
    """The arrays that a compiled function takes, and those that it returns.

    Args:
      compiled: a `jax.stages.Compiled`. static: numbers of its static positional arguments.
      module: its HLO module, which has the arguments' names; without it, names are paths.
    """
    return _taken(compiled, module, static), _returned(compiled)


def device_count(compiled: Any) -> int:
    """Number of devices that run a `jax.stages.Compiled`, by arguments' and results' shardings."""
    shardings = (
        *jax.tree.leaves(compiled.input_shardings),
        *jax.tree.leaves(compiled.output_shardings),
    )
    return max((len(sharding.device_set) for sharding in shardings), default=1)


def donation_hint(compiled: Any, static: Collection[int] = ()) -> str:
    """A line on large arguments that could be donated and are not; "" if there are none.
    `compiled`: a `jax.stages.Compiled`. `static`: numbers of its static positional arguments.
    """
    kept = donatable(compiled, static)
    size = sum(argument.bytes for argument in kept)
    if size < _NOTEWORTHY or size < _NOTEWORTHY_SHARE * assigned_bytes(compiled):
        return ""  # XLA's total takes a while to compute, so it comes last.
    first = max(kept, key=lambda argument: argument.bytes).path
    one = len(kept) == 1
    which = (
        f"argument {first} ({{}}) is" if one else f"{len(kept)} arguments ({first}, ...; {{}}) are"
    )
    return (
        f"{which.format(f'{size / 2**20:,.1f} MB')} not donated, though "
        f"{'an output has the same type' if one else 'outputs have the same types'}; "
        f"{to_donate(kept)} saves that memory if the caller no longer needs "
        f"{'it' if one else 'them'}"
    )


def donatable(compiled: Any, static: Collection[int] = ()) -> list[Leaf]:
    """Lists the argument arrays that could be donated but are not; [] if they are small in total,
    or JAX does not tell. `compiled`: a `jax.stages.Compiled`. `static`: numbers of its static
    positional arguments.
    """
    try:
        # Formats take a while, so arguments of which no output has shape and type are ruled out
        # first.
        alike = {_type(info) for info in jax.tree.leaves(compiled.out_info)}
        given = [info for info in jax.tree.leaves(compiled.args_info) if not info.donated]
        if sum(_bytes(i) for i in given if _type(i) in alike) < _NOTEWORTHY:
            return []
        if not _possible(*leaves(compiled, static=static)):
            return []
        # The module has names, and tells which results are derivatives; reading it takes longest.
        module = _module(compiled)
        taken, returned = leaves(compiled, module, static)
        made = reading.derivatives(module)
        return _possible(taken, [r for r in returned if r.number not in made])
    except (AttributeError, NotImplementedError, TypeError, ValueError, HloError) as error:
        # A hint must not keep a step from running.
        _logger.debug("no donation hint", exc_info=error)
        return []


def _module(compiled: Any) -> Module:
    """The HLO module of a `jax.stages.Compiled`; HloError if it cannot be read."""
    first = compiled.runtime_executable().hlo_modules()[0]
    return module_from_bytes(first.as_serialized_hlo_module_proto())


def _possible(taken: Sequence[Leaf], returned: Sequence[Leaf]) -> list[Leaf]:
    """The arguments not donated, though an output that takes no donated one has the same type."""
    # JAX gives outputs to donated arguments of their type first.
    donated = collections.Counter(a.type for a in taken if a.donated and a.number is not None)
    free = []
    for result in returned:
        donated[result.type] -= 1
        if donated[result.type] < 0:
            free.append(result)
    return [argument for argument, _ in not_donated(taken, free, set())]


def _taken(compiled: Any, module: Module | None, static: Collection[int]) -> list[Leaf]:
    infos = jax.tree_util.tree_leaves_with_path(compiled.args_info)
    formats = _flat(compiled.args_info, compiled.input_formats)
    # An argument that is not passed has neither layout nor sharding.
    passed = [f is not None and f.layout is not None for f in formats]
    names = ["" for _ in infos] if module is None else [p.op_name for p in module.entry.parameters]
    number = max(len(names) - sum(passed), 0) if module else 0  # constants precede the arguments
    taken = []
    for (path, info), form, is_passed in zip(infos, formats, passed, strict=True):
        name = (names[number] if is_passed else "") or _path(path)
        argnum = _argnum(path, static)
        leaf = _leaf(name, info, form, info.donated, number if is_passed else None)
        taken.append(dataclasses.replace(leaf, argnum=argnum))
        number += is_passed
    return taken


def _argnum(path: Sequence[Any], static: Collection[int]) -> int | None:
    """An argument's number for `donate_argnums`, which counts static ones; None for a keyword."""
    if len(path) < 2 or path[0].idx:  # (args, kwargs)
        return None
    passed = (n for n in itertools.count() if n not in static)
    return next(itertools.islice(passed, path[1].idx, None))


def _returned(compiled: Any) -> list[Leaf]:
    infos = jax.tree_util.tree_leaves_with_path(compiled.out_info)
    formats = _flat(compiled.out_info, compiled.output_formats)
    return [
        _leaf("result" + jax.tree_util.keystr(path), info, form, False, number)
        for number, ((path, info), form) in enumerate(zip(infos, formats, strict=True))
    ]


def _flat(infos: Any, formats: Any) -> list[Any]:
    """The entry of `formats` for each leaf of the pytree `infos`, in order; None for no entry."""
    return jax.tree.structure(infos).flatten_up_to(formats)


def _path(path: Sequence[Any]) -> str:
    """The name of an argument, made of its key path in the pytree (args, kwargs)."""
    return "argument " + jax.tree_util.keystr(tuple(path[1:]))


def _bytes(info: Any, sharding: Any = None) -> int:
    shape = info.shape if sharding is None else sharding.shard_shape(tuple(info.shape))
    return math.prod(shape) * info.dtype.itemsize


def _type(info: Any) -> tuple[Any, str]:
    return tuple(info.shape), str(info.dtype)


def _leaf(path: str, info: Any, form: Any, donated: bool, number: int | None) -> Leaf:
    return Leaf(
        path=path,
        shape=tuple(info.shape),
        dtype=str(info.dtype),
        bytes=_bytes(info, None if form is None else form.sharding),
        donated=donated,
        number=number,
        layout="" if form is None else str(getattr(form.layout, "major_to_minor", "")),
        sharding=None if form is None else form.sharding,
    )

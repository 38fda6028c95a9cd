"""Axes that are sharded over devices: each device cuts its own part."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from olla_xla.errors import InputError
from olla_xla.pieces.factors import SUM
from olla_xla.pieces.graph import Graph, spread
from olla_xla.pieces.region import Region
from olla_xla.segments.equations import operands


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices over which an axis is sharded: `count`, along the axes `names` of `mesh`."""

    mesh: Any
    names: tuple[str, ...]
    count: int

    def spec(self, d: int) -> PartitionSpec:
        """Returns the PartitionSpec of an array whose dimension `d` these devices share."""
        return PartitionSpec(*(None,) * d, self.names)


def refuse_explicit(graph: Graph) -> None:
    """Raises InputError if the type of a value in `graph` is sharded over explicit mesh axes."""
    for v in (*graph.inputs, *(v for e in graph.equations for v in e.outvars)):
        spec = getattr(getattr(v.aval, "sharding", None), "spec", ())
        if any(axes is not None for axes in spec):
            raise InputError(
                f"{v.aval.str_short()} is sharded over explicit axes of a mesh, which fission does "
                "not support; make the mesh with jax.sharding.AxisType.Auto"
            )


def leaf_shardings(args: Any, kwargs: Any, in_shardings: Any = None) -> list[Any]:
    """Returns the sharding of each leaf of (args, kwargs), or None for a leaf without one. If
    `kwargs` is empty, `in_shardings`, an option of `jax.jit`, overrides those for which it has one.
    """
    leaves = jax.tree.leaves((args, kwargs))
    shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
    if in_shardings is not None and not kwargs:

        def is_leaf(x: Any) -> bool:
            return x is None or isinstance(x, jax.sharding.Sharding)

        given = jax.tree.broadcast(in_shardings, args, is_leaf=is_leaf)
        for k, sharding in enumerate(jax.tree.leaves(given, is_leaf=is_leaf)):
            shardings[k] = sharding or shardings[k]
    return shardings


def over_devices(
    graph: Graph, shardings: Mapping[Any, Any], regions: Sequence[Region]
) -> list[Devices | None]:
    """Returns for each region, which runs in pieces of an axis, the devices that share the axis, or
    None. A sharded dimension of an input is followed through the function as a cut is. `shardings`:
    of the function's inputs, by variable. Raises InputError if the parts of an axis do not divide
    evenly over devices, two or more for each.
    """
    seeds: dict[tuple[Any, tuple[str, ...]], dict[Any, int]] = {}
    for v, sharding in shardings.items():
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, jax.sharding.Mesh):
            for d, names in enumerate(sharding.spec):
                names = (names,) if isinstance(names, str) else tuple(names or ())
                if names and _count(sharding.mesh, names) > 1:
                    seeds.setdefault((sharding.mesh, names), {})[v] = d
    by_region: list[Devices | None] = [None] * len(regions)
    for (mesh, names), dims in seeds.items():
        where = spread(graph, dims).cut
        for k, region in enumerate(regions):
            inside = {v for e in region.equations for v in (*operands(e), *e.outvars)}
            if any(region.cut.get(v, SUM) == where.get(v, SUM) >= 0 for v in inside):
                by_region[k] = _checked(region, Devices(mesh, names, _count(mesh, names)))
    return by_region


def _count(mesh: Any, names: tuple[str, ...]) -> int:
    count = 1
    for name in names:
        count *= mesh.shape[name]
    return count


def _checked(region: Region, devices: Devices) -> Devices:
    if region.units % devices.count or region.units < 2 * devices.count:
        raise InputError(
            f"an axis of {region.units} over {devices.count} devices ({', '.join(devices.names)}) "
            f"is not cut: its length must be a multiple of {devices.count}, and at least twice it"
        )
    return devices

"""Runs a region a piece at a time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from olla_xla.pieces.accumulators import (
    Accumulator,
    is_narrow,
    part_types,
    parts_of,
    reduced,
    zero_after,
)
from olla_xla.pieces.factors import REDUCED
from olla_xla.pieces.region import Region
from olla_xla.pieces.run import Piece, run_piece
from olla_xla.pieces.sharded import Devices
from olla_xla.segments.equations import has_gradient, inexact, replaced, zeros_but


@dataclasses.dataclass(frozen=True)
class Pieces:
    """How an axis is divided: into `full` pieces of `count` units, and perhaps a smaller rest.
    `units`: the most equal parts into which the axis can be cut, on each device where it is
    sharded. `devices`: those over which it is sharded, or None. `on_cpu`: as in `Piece`.
    """

    units: int
    count: int
    devices: Devices | None = None
    on_cpu: bool = False

    @classmethod
    def of(cls, units: int, pieces: int, devices: Devices | None = None) -> Pieces:
        """Divides an axis of `units` smallest equal parts into at most `pieces` pieces of equal
        size, the last perhaps smaller, of one part or more each. `devices`: those over which the
        axis is sharded, each of which divides its own part of it, or None.
        """
        units //= 1 if devices is None else devices.count
        return cls(units, -(-units // min(pieces, units)), devices)

    def piece(self, count: int, start: Any) -> Piece:
        """Returns the piece of `count` units (smallest equal parts) from unit `start` on, in the
        part of the axis of the device that runs this.
        """
        if self.devices is None:
            return Piece(self.units, count, start, self.on_cpu)
        first = jax.lax.axis_index(self.devices.names) * self.units
        return Piece(self.units * self.devices.count, count, first + start)

    def number(self, piece: Piece) -> Any:
        """Returns a piece's number, from 0, among those of the whole axis on all its devices."""
        device, start = jnp.divmod(piece.start, self.units)
        return device * len(self) + start // self.count

    @property
    def full(self) -> int:
        """The number of full pieces, of `count` units (smallest equal parts of the axis) each."""
        return self.units // self.count

    @property
    def rest(self) -> int:
        """The units (smallest equal parts of the axis) in the last, smaller piece; 0 if none is."""
        return self.units % self.count

    def __len__(self) -> int:
        return self.full + bool(self.rest)


_PieceFunction = Callable[[Sequence[Any], Piece, Sequence[Any]], tuple[list[Any], list[Any]]]
"""(what each piece reads whole, the piece, its slices of the cut arrays) -> (its parts of the sums,
its parts of the other results)."""


def run_region(
    region: Region,
    values: Mapping[Any, Any],
    pieces: int,
    accumulate_dtype: Any,
    devices: Devices | None = None,
) -> dict[Any, Any]:
    """Runs a region, equations cut along an axis, a piece at a time in a loop; returns {variable:
    result}. Under differentiation a piece is computed again in the backward pass, inside its own
    iteration. `values`: variable -> value of the region's inputs. `devices`: those over which the
    axis is sharded; each cuts its own part of it.
    """
    inputs = [v for v, _ in region.cut_inputs]
    forward = _Forward(region, Pieces.of(region.units, pieces, devices), accumulate_dtype)
    whole, cut = [values[v] for v in region.whole_inputs], [values[v] for v in inputs]
    narrow = any(is_narrow(x.dtype, accumulate_dtype) for x in whole)
    own = narrow or devices is not None
    sums, stacked = (_with_own_backward(forward) if own else forward)(whole, cut)
    made = dict(zip(region.sums, sums, strict=True))
    joined = iter(stacked)
    made.update(zip((v for v, _ in region.stacked), joined, strict=False))
    for v, e in region.reduced.items():
        made[v] = reduced(e, [next(joined) for _ in part_types(e)])
    return made


@dataclasses.dataclass(frozen=True)
class _Forward:
    """A region as a function: (inputs read whole, inputs cut) -> (sums, results joined again)."""

    region: Region
    pieces: Pieces
    accumulate_dtype: Any

    def piece(
        self, whole: Sequence[Any], piece: Piece, parts: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        r = self.region
        given = dict(zip(r.whole_inputs, whole, strict=True))
        cut = dict(zip((v for v, _ in r.cut_inputs), parts, strict=True))
        _, made = run_piece(r.equations, r.chosen, given, cut, piece)
        joined = [made[v] for v, _ in r.stacked]
        for v, e in r.reduced.items():
            (x,) = e.invars
            first = piece.start * (x.aval.shape[r.cut[x]] // piece.units)
            joined += parts_of(e, made[x], made[v], first)
        return [made[v] for v in r.sums], joined

    @property
    def joined(self) -> list[tuple[Any, int]]:
        """(shape and dtype, dimension) of each array that is joined from pieces. Those of a
        reduction that is no sum have one row for each piece, and the dimension is REDUCED.
        """
        rows = [(x, REDUCED) for e in self.region.reduced.values() for x in part_types(e)]
        return [*((v.aval, d) for v, d in self.region.stacked), *rows]

    def __call__(self, whole: Sequence[Any], cut: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        return _over_pieces(
            self.piece,
            self.pieces,
            whole,
            list(zip(cut, (d for _, d in self.region.cut_inputs), strict=True)),
            [v.aval for v in self.region.sums],
            [(x, max(d, 0)) for x, d in self.joined],
            self.accumulate_dtype,
        )


def _with_own_backward(forward: _Forward) -> Callable[..., Any]:
    """Returns `forward`, a function that runs in pieces, with a derivative that adds the gradients
    of inputs that each piece reads whole in the wider type. JAX adds the gradient of a loop's
    constant in the constant's type, and XLA fails to compile sums over devices of a narrow type.
    """
    region = forward.region
    dims, joined = [d for _, d in region.cut_inputs], forward.joined

    def saved(whole: Any, cut: Any) -> Any:
        return forward(whole, cut), (whole, cut)

    def backward(given: Any, cotangents: Any) -> Any:
        moved, cut = given
        of_sums, of_stacked = cotangents
        moving, moving_cut = inexact(moved), inexact(cut)

        # Integers have no gradient: their cotangents are of a type that no loop takes.
        smooth_sums = [k for k, v in enumerate(region.sums) if has_gradient(v.aval)]
        smooth_joined = [k for k, (x, _) in enumerate(joined) if has_gradient(x)]
        rows = [k for k in smooth_joined if joined[k][1] == REDUCED]
        smooth_stacked = [k for k in smooth_joined if k not in rows]

        def function(
            needed: Sequence[Any], piece: Piece, parts: Sequence[Any]
        ) -> tuple[list[Any], list[Any]]:
            whole, of_sums = needed[: len(moved)], list(needed[len(moved) :])
            given, pulled = parts[: len(cut)], list(parts[len(cut) :])
            of_rows = [of_sums.pop() for _ in rows][::-1]
            number = forward.pieces.number(piece)
            pulled += [jax.lax.dynamic_index_in_dim(x, number) for x in of_rows]

            def smooth(some: list[Any], some_cut: list[Any]) -> Any:
                of_whole = replaced(whole, moving, some)
                made = forward.piece(of_whole, piece, replaced(given, moving_cut, some_cut))
                return [made[0][k] for k in smooth_sums], [made[1][k] for k in smooth_joined]

            _, pull = jax.vjp(smooth, [whole[i] for i in moving], [given[i] for i in moving_cut])
            return pull((of_sums, pulled))

        xs = list(zip(cut, dims, strict=True))
        xs += [(of_stacked[k], joined[k][1]) for k in smooth_stacked]
        sums, stacked = _over_pieces(
            function,
            forward.pieces,
            [*moved, *(of_sums[k] for k in smooth_sums), *(of_stacked[k] for k in rows)],
            xs,
            [jax.typeof(moved[i]) for i in moving],
            [(jax.typeof(cut[i]), dims[i]) for i in moving_cut],
            forward.accumulate_dtype,
        )
        return zeros_but(moved, moving, sums), zeros_but(cut, moving_cut, stacked)

    function = jax.custom_vjp(forward)
    function.defvjp(saved, backward)
    return function


def _over_pieces(
    function: _PieceFunction,
    pieces: Pieces,
    whole: Sequence[Any],
    xs: Sequence[tuple[Any, int]],
    sums: Sequence[Any],
    stacked: Sequence[tuple[Any, int]],
    accumulate_dtype: Any,
) -> tuple[list[Any], list[Any]]:
    """Runs `function` on all pieces of an axis, on all devices; returns (its sums added up, its
    other results joined). `whole`: what each piece reads whole. `xs`: arrays and the dimensions
    along which they are cut. `sums`: their shapes. `stacked`: shapes, and dimensions to join along,
    of the others.
    """
    dims, devices = [d for _, d in xs], pieces.devices

    def looped(
        whole: Sequence[Any],
        arrays: Sequence[Any],
        *,
        in_place: bool,
        in_halves: bool = False,
        on_cpu: bool = False,
    ) -> Any:
        totals = [Accumulator.of(s, accumulate_dtype, in_halves=in_halves) for s in sums]
        cut = list(zip(arrays, dims, strict=True))
        of_piece = functools.partial(function, whole)
        all_pieces = dataclasses.replace(pieces, on_cpu=on_cpu)
        zero = zero_after([*whole, *arrays]) if on_cpu else 0
        return _loop(of_piece, all_pieces, totals, cut, stacked, zero, in_place=in_place)

    split = functools.partial(looped, in_place=False)
    placed = functools.partial(looped, in_place=True)
    halved = functools.partial(placed, in_halves=True)
    for_cpu = functools.partial(placed, on_cpu=True)
    has_halves = any(Accumulator.of(s, accumulate_dtype, in_halves=True).in_halves for s in sums)

    def by_platform(whole: Sequence[Any], arrays: Sequence[Any]) -> Any:
        # On a CPU XLA materialises the whole sum before it splits it into halves.
        return jax.lax.platform_dependent(whole, arrays, cpu=for_cpu, default=halved)

    loop = split
    if any(dims) or has_halves:
        # Sums over devices (psum) need whole totals, not halves.
        loop = jax.custom_jvp(by_platform if has_halves and devices is None else placed)
        # An array that a loop slices is a constant of the loop, for which JAX adds gradients of the
        # whole size; and halves have no gradient.
        loop.defjvp(functools.partial(jax.jvp, split))

    def run(whole: Sequence[Any], arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        totals, joined = loop(whole, arrays)
        if devices is not None:
            totals = [jax.lax.psum(t, devices.names) for t in totals]
        return [t.astype(s.dtype) for t, s in zip(totals, sums, strict=True)], joined

    if devices is not None:
        everywhere = jax.sharding.PartitionSpec()
        run = jax.jit(  # shard_map needs jit where the mesh has other axes
            jax.shard_map(
                run,
                mesh=devices.mesh,
                in_specs=([everywhere] * len(whole), [devices.spec(d) for d in dims]),
                out_specs=([everywhere] * len(sums), [devices.spec(d) for _, d in stacked]),
                axis_names=set(devices.names),
                check_vma=False,
            )
        )
    return run(list(whole), [x for x, _ in xs])


def _loop(
    function: Callable[[Piece, Sequence[Any]], tuple[list[Any], list[Any]]],
    pieces: Pieces,
    sums: Sequence[Accumulator],
    xs: Sequence[tuple[Any, int]],
    stacked: Sequence[tuple[Any, int]],
    zero: Any,
    *,
    in_place: bool,
) -> tuple[list[Any], list[Any]]:
    """Runs a function on all pieces of an axis on one device, in a `scan`; returns (sums, joined
    results). Results that are joined along another dimension than the first are written into place
    by each piece: stacked along a new first dimension they would have to be transposed afterwards.
    `sums`: their accumulators, which start with `zero`. `xs`, `stacked`: as in `_over_pieces`.
    `in_place`: whether arrays that are cut along another dimension than the first are sliced as
    they are; else they are transposed first.
    """
    units, devices = pieces.units, pieces.devices
    placed = [k for k, (_, d) in enumerate(stacked) if d]
    listed = [k for k in range(len(stacked)) if k not in placed]

    def of_piece(count: int) -> Callable[..., Any]:
        def run(start: Any, parts: Sequence[Any]) -> Any:
            return function(pieces.piece(count, start), parts)

        return jax.checkpoint(run, prevent_cse=False)

    def add(totals: Sequence[Any], parts: Sequence[Any]) -> list[Any]:
        return [s.add(t, p) for s, t, p in zip(sums, totals, parts, strict=True)]

    run_full = of_piece(pieces.count)
    scanned = [k for k, (_, d) in enumerate(xs) if not (in_place and d)]

    def sliced(leading: Sequence[Any], start: Any) -> list[Any]:
        parts = dict(zip(scanned, leading, strict=True))
        for k, (x, d) in enumerate(xs):
            if k not in parts:
                unit = x.shape[d] // units
                size = unit * pieces.count
                parts[k] = jax.lax.dynamic_slice_in_dim(x, start * unit, size, d)
        return [parts[k] for k in range(len(xs))]

    def put(held: Sequence[Any], arrays: Sequence[Any], start: Any) -> list[Any]:
        updated = []
        for k, whole in zip(placed, held, strict=True):
            d = stacked[k][1]
            at = start * (whole.shape[d] // units)
            updated.append(jax.lax.dynamic_update_slice_in_dim(whole, arrays[k], at, d))
        return updated

    def body(carry: Any, x: Any) -> Any:
        (totals, held), (start, leading) = carry, x
        parts, arrays = run_full(start, sliced(leading, start))
        return (add(totals, parts), put(held, arrays, start)), [arrays[k] for k in listed]

    in_full = pieces.full * pieces.count
    starts = jnp.arange(pieces.full, dtype=jnp.int32) * pieces.count
    split = [_split(xs[k][0], xs[k][1], pieces) for k in scanned]
    held = [_unwritten(*stacked[k], devices) for k in placed]
    totals = [s.zeros(zero) for s in sums]
    (totals, held), arrays = jax.lax.scan(body, (totals, held), (starts, split))
    joined = [a.reshape((a.shape[0] * a.shape[1], *a.shape[2:])) for a in arrays]
    if pieces.rest:
        tails = [
            jax.lax.slice_in_dim(x, x.shape[d] // units * in_full, None, axis=d) for x, d in xs
        ]
        start = jnp.int32(in_full)
        parts, arrays = of_piece(pieces.rest)(start, tails)
        totals, held = add(totals, parts), put(held, arrays, start)
        joined = [
            jax.lax.concatenate([a, arrays[k]], 0) for k, a in zip(listed, joined, strict=True)
        ]
    made = dict(zip((*placed, *listed), (*held, *joined), strict=True))
    whole = [s.total(t) for s, t in zip(sums, totals, strict=True)]
    return whole, [made[k] for k in range(len(stacked))]


def _unwritten(of: Any, d: int, devices: Devices | None) -> Any:
    """Returns zeros of a result's shape; with devices, of one's part of it along dimension `d`."""
    count = 1 if devices is None else devices.count
    return jnp.zeros((*of.shape[:d], of.shape[d] // count, *of.shape[d + 1 :]), of.dtype)


def _split(x: Any, d: int, pieces: Pieces) -> Any:
    """Returns the full pieces of an array along dimension `d`, stacked along a new dimension 0."""
    unit = x.shape[d] // pieces.units
    x = jax.lax.slice_in_dim(x, 0, unit * pieces.count * pieces.full, axis=d)
    shape = (*x.shape[:d], pieces.full, unit * pieces.count, *x.shape[d + 1 :])
    return jnp.moveaxis(x.reshape(shape), d, 0)

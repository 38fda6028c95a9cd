"""The independent referee: every plan is checked from scratch before it is used.

It shares no code with the evaluator, the search or the simulation; it imports the problem only.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from olla_xla.errors import CheckError
from olla_xla.problem.graph import TensorGraph


def check_schedule(graph: TensorGraph, order: Sequence[int], peak_bytes: int | None = None) -> int:
    """Checks an order of a graph's operators; returns its recomputed lifetime peak in bytes.

    Raises CheckError if it is no permutation, an operator runs before one it depends on, a reader
    of a donated or updated buffer runs after the operator that overwrites it, or the peak is wrong.

    Args:
      graph: the tensor graph.
      order: operator ids in execution order.
      peak_bytes: the peak that was claimed for it, or None.
    """
    steps = _steps(graph, order)
    for u, v in graph.edges:
        if u != v and steps[u] > steps[v]:
            raise CheckError(
                f"{_operator(graph, v)} runs at step {steps[v]}, before {_operator(graph, u)} "
                f"at step {steps[u]}, on which it depends"
            )
    for tensor in graph.tensors:
        for sink in tensor.sinks:
            if steps[sink] < steps[tensor.source]:
                raise CheckError(
                    f"{_operator(graph, sink)} reads {tensor.name} at step {steps[sink]}, before "
                    f"{_operator(graph, tensor.source)} defines it at step {steps[tensor.source]}"
                )
    for u, v in graph.alias_edges:
        if u != v and steps[u] > steps[v]:
            raise CheckError(
                f"{_operator(graph, u)} reads a buffer at step {steps[u]} that "
                f"{_operator(graph, v)} has overwritten at step {steps[v]}"
            )
    _check_aliases(graph, steps)
    peak = _peak(graph, steps)
    if peak_bytes is not None and peak != peak_bytes:
        raise CheckError(f"the plan claims a peak of {peak_bytes} bytes, but its peak is {peak}")
    return peak


def lifetime_peak(graph: TensorGraph, order: Sequence[int]) -> int:
    """The lifetime peak of an order in bytes, recomputed from scratch (in-place reuse counted).
    CheckError if it is no permutation.
    """
    return _peak(graph, _steps(graph, order))


def _operator(graph: TensorGraph, k: int) -> str:
    return graph.operators[k].name


def _steps(graph: TensorGraph, order: Sequence[int]) -> list[int]:
    n = len(graph.operators)
    steps = [-1] * n
    for step, k in enumerate(order):
        if not 0 <= k < n:
            raise CheckError(
                f"the order has operator {k} at position {step}, but {graph.name} has only {n}"
            )
        if steps[k] >= 0:
            raise CheckError(f"{_operator(graph, k)} runs twice, at steps {steps[k]} and {step}")
        steps[k] = step
    for k, step in enumerate(steps):
        if step < 0:
            raise CheckError(f"the order of {graph.name} lacks {_operator(graph, k)}")
    return steps


def _last_steps(graph: TensorGraph, steps: Sequence[int]) -> list[int]:
    """For each tensor, the last step at which it is made or read; if live out, the last of all."""
    return [
        len(steps) - 1 if t.live_out else max(map(steps.__getitem__, (t.source, *t.sinks)))
        for t in graph.tensors
    ]


def _check_aliases(graph: TensorGraph, steps: Sequence[int]) -> None:
    """Raises CheckError if a tensor, not live out, is read after another takes its buffer over."""
    last = _last_steps(graph, steps)
    buffers: dict[int, list[int]] = {}
    for t, tensor in enumerate(graph.tensors):
        buffers.setdefault(tensor.buffer, []).append(t)
    for members in buffers.values():
        members.sort(
            key=lambda t: (not graph.tensors[t].live_in, steps[graph.tensors[t].source], t)
        )
        for a, b in zip(members, members[1:], strict=False):
            first, second = graph.tensors[a], graph.tensors[b]
            if first.source == second.source:
                continue
            if last[a] > steps[second.source] and not first.live_out:
                raise CheckError(
                    f"{first.name} is still read at step {last[a]}, after "
                    f"{second.name} takes its buffer at step {steps[second.source]}"
                )


def _handed(graph: TensorGraph, steps: Sequence[int], last: Sequence[int]) -> dict[int, int]:
    """Tensors whose memory passes on at their `last` step: tensor -> the tensor that takes it."""
    taken: dict[int, int] = {}
    given: set[int] = set()
    must = []
    by_buffer: dict[int, list[int]] = {}
    for t, tensor in enumerate(graph.tensors):
        by_buffer.setdefault(tensor.buffer, []).append(t)
    for members in by_buffer.values():
        must += [(b, a) for b in members for a in members if a != b]
    for pairs in (sorted(must), graph.inplace):
        for b, a in pairs:
            out, dying = graph.tensors[b], graph.tensors[a]
            if a in taken or b in given or dying.live_out or out.live_in:
                continue
            if out.source != dying.source and last[a] == steps[out.source]:
                taken[a] = b
                given.add(b)
    return taken


def _intervals(graph: TensorGraph, steps: Sequence[int]) -> list[tuple[int, int]]:
    """[start, stop) steps of each tensor; one whose memory is taken over ends a step earlier."""
    last = _last_steps(graph, steps)
    handed = _handed(graph, steps, last)
    return [
        (0 if tensor.live_in else steps[tensor.source], last[t] + (t not in handed))
        for t, tensor in enumerate(graph.tensors)
    ]


def _peak(graph: TensorGraph, steps: Sequence[int]) -> int:
    n = len(steps)
    change = [0] * (n + 1)
    for tensor, (start, stop) in zip(graph.tensors, _intervals(graph, steps), strict=True):
        if stop > start:
            change[start] += tensor.bytes
            change[stop] -= tensor.bytes
    transient = [0] * n
    for k, step in enumerate(steps):
        transient[step] = graph.operators[k].transient_bytes
    peak = live = 0
    for step in range(n):
        live += change[step]
        peak = max(peak, live + transient[step])
    return peak


def _passes_on(
    graph: TensorGraph, last: Sequence[int], a: int, b: int, step: int, paired: bool
) -> bool:
    """Whether tensor `b`, which begins at `step`, may lie in the memory of tensor `a`.

    `last`: last step of each tensor. `paired`: whether the graph has them as an in-place pair.
    """
    old, new = graph.tensors[a], graph.tensors[b]

    def dies(t: int) -> bool:
        return not graph.tensors[t].live_out and last[t] == step

    # A callee may overwrite an operand after its last read there, where it is checked.
    calls = new.source < len(graph.operators) and graph.operators[new.source].opcode in _CALLING
    inside = calls and (old.live_in or old.source != new.source)
    # A callee's tensor and its caller's result begin at one step, in any order here; the callee's
    # dies in it.
    together = old.source == new.source and not old.live_in and dies(b)
    return (dies(a) and inside) or (paired and (dies(a) or together))


def check_placement(
    graph: TensorGraph,
    order: Sequence[int],
    offsets: Mapping[str, tuple[int, int]],
    arena_bytes: int | None = None,
    *,
    one_offset: bool = True,
) -> None:
    """Checks that no two tensors that live at the same time share a byte.

    Tensors of one buffer share by design; so may a result and an operand that dies at its operator,
    if they are an in-place pair or it calls computations, and both begin at one offset. Raises
    CheckError if others overlap, or a tensor of some bytes has no place, a wrong size, or leaves
    the arena, or the order is no permutation.

    Args:
      graph: the tensor graph. order: operator ids in execution order.
      offsets: tensor name -> (offset, size): the tensor occupies bytes [offset, offset + size).
      arena_bytes: the arena's size, or None for no limit.
      one_offset: whether a tensor that takes over another one's memory must begin at its offset;
        else any overlap of the two is allowed.
    """
    steps = _steps(graph, order)
    lasts = _last_steps(graph, steps)
    handed = _handed(graph, steps, lasts)
    pairs = {*graph.inplace}
    places = []
    for t, tensor in enumerate(graph.tensors):
        if not tensor.bytes:
            continue
        offset, size = _place_of(tensor.name, tensor.bytes, offsets, arena_bytes)
        start = 0 if tensor.live_in else steps[tensor.source]
        places.append((start, lasts[t], offset, offset + size, t))
    places.sort()
    for k, earlier in _met(np.array(places, np.int64).reshape(-1, 5)):
        start, _, offset, end, t = places[k]
        o = places[earlier][4]
        a, b = graph.tensors[o], graph.tensors[t]
        other_offset, size = offsets[a.name]
        paired = (t, o) in pairs or (o, t) in pairs
        handed_on = a.buffer == b.buffer or handed.get(o) == t
        if handed_on or _passes_on(graph, lasts, o, t, start, paired):
            if other_offset == offset or not one_offset:
                continue
            raise CheckError(
                f"{b.name} at [{offset}, {end}) takes over the memory of {a.name} at "
                f"[{other_offset}, {other_offset + size}), but begins at another offset"
            )
        raise CheckError(
            f"{a.name} at [{other_offset}, {other_offset + size}) and {b.name} at [{offset}, "
            f"{end}) overlap, and both are live at step {start}"
        )


_CALLING = ("call", "conditional", "while")

_PAGES, _AT_ONCE = 64, 128
"""Parts of the arena: a tensor is compared with those alone that lie in the same ones; and how many
tensors are compared at once."""


def _met(places: np.ndarray) -> list[list[int]]:
    """Pairs [later, earlier] of rows of `places` that share a byte when the later begins.

    `places`: int64 [any, 5], ascending: first and last step, first byte and end, tensor.
    """
    page = places[:, 3].max(initial=0) // _PAGES + 1
    first, last = places[:, 2] // page, (places[:, 3] - 1) // page
    met = [np.zeros(0, np.int64)]
    for p in range(_PAGES):
        here = np.flatnonzero((first <= p) & (last >= p))
        live = here[:0]
        for k in range(0, len(here), _AT_ONCE):
            new = here[k : k + _AT_ONCE]
            live = np.append(live[places[live, 1] >= places[new[0], 0]], new)
            later, earlier = np.nonzero(_overlap(places[new, :, None], places[live].T))
            pairs = new[later] * len(places) + live[earlier]
            met.append(pairs[new[later] > live[earlier]])
    return np.stack(np.divmod(np.unique(np.concatenate(met)), max(len(places), 1)), 1).tolist()


def _overlap(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Bool [new, old]: whether both share a byte, and the old one lives until the new begins.

    `new`: int64 [new, 5, 1]. `old`: int64 [5, old]. Of the five: first and last step, first byte,
    end, tensor.
    """
    return (old[1] >= new[:, 0]) & (old[2] < new[:, 3]) & (old[3] > new[:, 2])


def _place_of(
    name: str, size: int, offsets: Mapping[str, tuple[int, int]], arena_bytes: int | None
) -> tuple[int, int]:
    if name not in offsets:
        raise CheckError(f"the plan has no address for tensor {name}")
    offset, planned = offsets[name]
    if planned != size:
        raise CheckError(f"tensor {name} has {size} bytes, but {planned} in the plan")
    if offset < 0 or (arena_bytes is not None and offset + size > arena_bytes):
        raise CheckError(
            f"tensor {name} at [{offset}, {offset + size}) exceeds the plan's {arena_bytes} bytes"
        )
    return offset, size

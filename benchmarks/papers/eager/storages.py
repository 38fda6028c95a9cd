"""The referee of storage assignments; it uses only the graph, nothing of the planners."""

from __future__ import annotations

from olla_xla.errors import CheckError
from olla_xla.problem.graph import Tensor, TensorGraph


def check_storages(
    graph: TensorGraph,
    storage: tuple[int, ...],
    sizes: tuple[int, ...],
    *,
    parallel: bool = False,
) -> None:
    """Checks that tensors live at the same time lie in different storages.

    The graph runs in program order. Two tensors may meet at one operator if that reads the one,
    makes the other, and may do so in place.

    Args:
      graph: operators in program order.
      storage: by tensor; negative: not planned.
      sizes: bytes of each storage.
      parallel: also check that the data flow alone, in whatever order or in parallel, keeps the
        lifetimes of a storage's tensors disjoint.

    Raises:
      CheckError: names the tensors that overlap, or the one that does not fit.
    """
    inplace = set(graph.inplace)
    tenants: dict[int, list[int]] = {}
    for number, t in enumerate(graph.tensors):
        s = storage[number]
        if s < 0:
            continue
        if s >= len(sizes) or t.bytes > sizes[s]:
            raise CheckError(f"{t.name}, {t.bytes} bytes, does not fit storage {s}")
        tenants.setdefault(s, []).append(number)
    for s, numbers in tenants.items():
        numbers.sort(key=lambda n: graph.tensors[n].source)
        for a, b in zip(numbers, numbers[1:], strict=False):
            early, late = graph.tensors[a], graph.tensors[b]
            if early.live_out or early.live_in or late.live_in:
                raise CheckError(f"{early.name} and {late.name}, one of them kept, share {s}")
            last = max((early.source, *early.sinks))
            meets = last == late.source and (b, a) in inplace and early.bytes == late.bytes
            if last >= late.source and not (meets and early.source < late.source):
                raise CheckError(f"{early.name} and {late.name} are both live in storage {s}")
    if parallel:
        before = graph.predecessors
        for s, numbers in tenants.items():
            for a, b in zip(numbers, numbers[1:], strict=False):
                _check_ordered(graph.tensors[a], graph.tensors[b], before, s)


def _check_ordered(early: Tensor, late: Tensor, before: list[list[int]], s: int) -> None:
    """Searches backward from the later tensor's source for all that touches the earlier one."""
    wanted = {early.source, *early.sinks} - {late.source}
    lowest = min(wanted, default=0)
    seen, stack = set(), [late.source]
    while stack and wanted:
        for u in before[stack.pop()]:
            if u >= lowest and u not in seen:
                seen.add(u)
                stack.append(u)
                wanted.discard(u)
    if wanted:
        raise CheckError(
            f"{early.name} and {late.name} share storage {s}, but nothing keeps them apart if "
            "operators run in parallel"
        )

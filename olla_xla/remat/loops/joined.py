"""Finds arrays that a loop reads slice by slice while it writes another one of the same shape.

`lax.scan` takes arrays as `xs` and gives new ones as `ys`. A cache that goes through a scan over
layers so is in memory twice. Where the first is not read any more once its slice is written, and
nothing needs it afterwards, both can be one array (`hlo.rewrite.join_arrays`).
"""

from collections.abc import Iterator, Sequence

from hlo.backend import platform
from hlo.cpu_code import one_function
from hlo.module import Computation, HloError, Instruction, Module
from hlo.rewrite.join_arrays import Join
from hlo.rounding import may_depend_on_memory, may_depend_on_others
from hlo.walk import after_needs
from olla_xla.problem.plan_parts import JoinRecord
from olla_xla.remat.loops.counted_loops import CountedLoop, counted_loop
from olla_xla.remat.loops.indices import Affine
from olla_xla.remat.loops.pairs import loop_sites
from olla_xla.remat.loops.scan_residuals import NotAResidual, axis_of, readers_of, written_slice

_Home = tuple[str, int] | None
"""Where an array comes from, or ends: an argument, or an element of the loop around; by number."""

_OTHER: _Home = ("other", 0)


def joins(module: Module, target: str, records: Sequence[JoinRecord] | None = None) -> list[Join]:
    """Finds the pairs of arrays of loops that can be one array, in the order of `records`.

    Args:
      module: a scheduled one. target: such as "cpu".
      records: pairs that are wanted; None: all, in the module's order.

    Raises:
      HloError: one of the records is not of this module.
    """
    together = one_function(module) if platform(target).joins_calls else {}
    possible: list[Join] = []
    for site, i in loop_sites(module).items():
        parts = together.get(site.called[0])
        if parts is None or not may_depend_on_others(parts):  # else it would be other code
            possible += _of_loop(module, site, i, target, together=parts is not None)
    if records is None:
        return possible
    known = {record(join): join for join in possible}
    if lost := [r for r in records if r not in known]:
        raise HloError(f"{lost[0][0]} lacks arrays that the plan lets it overwrite; plan again")
    return [known[r] for r in records]


def record(join: Join) -> JoinRecord:
    """Describes a Join as plans do: (name of the loop, element that is read, element written)."""
    return join.loop, join.read, join.written


def _of_loop(
    module: Module, site: Instruction, i: Instruction, target: str, *, together: bool
) -> Iterator[Join]:
    """Yields pairs of one loop's arrays that can be one; no state element is in two of them."""
    body = i.called[0]
    if not _has_equal_arrays(i, body):
        return
    loop = counted_loop(i, site, target, together=together)
    if loop is None:
        return
    begins = {k: _begins(module, loop.start[k]) for k in sorted(loop.fixed)}
    ends = {k: _ends(module, site, k) for k in range(len(loop.start)) if k not in loop.fixed}
    taken: set[int] = set()
    first: dict[Instruction, list[Instruction]] = {}
    for exactly in (True, False):  # first what is to be in the same place before and after
        for read, begin in begins.items():
            if read in taken or (begin is None) != (not exactly) or begin == _OTHER:
                continue
            for written, end in ends.items():
                if written in taken or (exactly and end != begin):
                    continue
                join = _join(loop, read, written, target, first)
                if join is not None:
                    taken |= {read, written}
                    yield join
                    break


def _has_equal_arrays(i: Instruction, body: Computation) -> bool:
    """Whether the state has an array that no iteration changes and another of the same shape."""
    if body.root is None or body.root.opcode != "tuple":
        return False
    fixed = {
        k
        for k, o in enumerate(body.root.operands)
        if o.opcode == "get-tuple-element"
        and o.tuple_index == k
        and o.operands[0] is body.parameters[0]
    }
    shapes = [s.key if s.is_array and s.dimensions else None for s in i.shape.elements]
    kept = {shapes[k] for k in fixed} - {None}
    return any(shapes[k] in kept for k in range(len(shapes)) if k not in fixed)


def _join(
    loop: CountedLoop,
    read: int,
    written: int,
    target: str,
    first: dict[Instruction, list[Instruction]],
) -> Join | None:
    """Joins two elements of a loop's state to one array; None if they cannot be one, as where an
    iteration may read what another one wrote. `first`: what writes a slice -> instructions that
    must read before it, for the pairs so far; added to.
    """
    body, shape = loop.body, loop.start[written].shape
    if loop.start[read].shape.key != shape.key or _is_read_elsewhere(loop, read):
        return None
    try:
        update, place, axis = written_slice(loop, written)
    except NotAResidual:
        return None
    if update.shape.key != shape.key:
        return None
    element = body.leaves(body.computation.parameters[0])[(read,)]
    put = update.owner
    readers = readers_of(body, element)
    for node in readers:
        if node.i.opcode != "dynamic-slice" or node.operands[0].shape.key != shape.key:
            return None
        here = axis_of(element.shape, node.operands[0].shape, node.shape, loop.iterations)
        if here != axis or body.affine(node.operands[1 + axis], whole=True) != place:
            return None
        if node.owner is put and not _may_split(put, place, target):
            return None
    before = [node.owner for node in readers if node.owner is not put]
    needs = after_needs(before, lambda k: (*k.operands, *k.control_predecessors, *first.get(k, ())))
    if put in needs:
        return None
    first.setdefault(put, []).extend(before)
    return Join(
        loop.i.name,
        loop.iterations,
        loop.counter,
        read,
        written,
        put.name,
        axis,
        (place.factor, place.offset),
    )


def _is_read_elsewhere(loop: CountedLoop, k: int) -> bool:
    """Whether a loop's condition, or what follows it, reads element `k`, or another equals it."""
    (tested,) = loop.i.called[1].parameters
    users = [*tested.users, *loop.site.users]
    root = loop.body.computation.root
    assert root is not None
    twice = sum(n.behind is loop.body.root[(k,)].behind for n in loop.body.root.values()) > 1
    return twice or any(u.tuple_index == k and (u.users or u.is_root) for u in users)


def _may_split(put: Instruction, place: Affine, target: str) -> bool:
    """Whether `put` may be given a slice instead of an array of which it takes that slice. It must
    be a fusion. Where kernels must keep their code to round alike, its rounding must be settled
    without it; where XLA emits only its own fusions, the slice is at the loop's counter.
    """
    at_counter = (place.factor, place.offset) == (1, 0)
    if put.opcode != "fusion" or not (platform(target).emits_any_fusion or at_counter):
        return False
    return not (platform(target).keeps_code and may_depend_on_memory(put, target))


def _begins(module: Module, start: Instruction) -> _Home:
    """Where an initial array lies: in a donated argument or an element of the loop around it, by
    number, or elsewhere (_OTHER); None if it is a value of its own, which nothing else needs.
    """
    start = start.behind("bitcast")
    if start.opcode == "parameter":
        if start.computation is not module.entry:
            return _OTHER
        donated = (start.parameter_number, ()) in module.donated
        return ("argument", start.parameter_number) if donated else _OTHER
    if start.opcode == "get-tuple-element" and start.operands[0].opcode == "parameter":
        return ("element", start.tuple_index)
    return _OTHER if start.opcode == "constant" else None


def _ends(module: Module, site: Instruction, k: int) -> _Home:
    """Where a loop's result `k` goes, as its only use: an aliased argument or an element of the
    loop around it, by number; None if nowhere in particular.
    """
    i = next((u for u in site.users if u.tuple_index == k), None)
    while i is not None and len(i.users) == 1 and i.users[0].opcode in ("bitcast", "copy"):
        (i,) = i.users
    if i is None or len(i.users) != 1 or not i.users[0].is_root:
        return None
    (root,) = i.users
    places = [n for n, o in enumerate(root.operands) if o is i]
    if root.opcode != "tuple" or len(places) != 1:
        return None
    if i.computation is not module.entry:
        return ("element", places[0])
    number, index = module.aliases.get((places[0],), (-1, ()))
    return ("argument", number) if number >= 0 and not index else None

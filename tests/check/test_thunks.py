"""What a GPU will run, held to its module: accepted as XLA made it, refused with any fault."""

import dataclasses

import pytest

from hlo import gpu_executable
from hlo.gpu_executable import read_gpu_executable
from hlo.gpu_thunks import Flow
from hlo.slices import Slice
from olla_xla.check.executable import check_executable
from olla_xla.errors import CheckError
from olla_xla.memory.snappy import unsnapped
from tests.support.gpu_executables import SHARDED, STEPS, read, serialized

pytestmark = pytest.mark.cuda13


def check(name, executable):
    check_executable(read(name)[0], "cuda", executable=executable)


def changed(executable, k, **changes):
    """The executable with the k-th thunk changed."""
    other = dataclasses.replace(executable.thunks[k], **changes)
    return dataclasses.replace(
        executable, thunks=(*executable.thunks[:k], other, *executable.thunks[k + 1 :])
    )


def at(thunk, n, place):
    """The accesses of a thunk with the n-th elsewhere."""
    row = list(thunk.accesses)
    row[n] = dataclasses.replace(row[n], slice=place)
    return tuple(row)


def find(executable, condition):
    """Number of the first thunk that a condition holds for."""
    return next(k for k, thunk in enumerate(executable.thunks) if condition(thunk))


@pytest.mark.parametrize("name", [*STEPS, *SHARDED])
def test_what_xla_makes_is_accepted(name):
    check(name, read(name)[1])


def test_exchanged_slices():
    _, found = read("chain")
    k = find(found, lambda t: len({a.slice for a in t.accesses if not a.writes}) > 1)
    first, second = found.thunks[k].accesses[:2]
    row = at(found.thunks[k], 0, second.slice)
    row = (row[0], dataclasses.replace(second, slice=first.slice), *row[2:])
    with pytest.raises(CheckError, match="reads bytes that are not its operands"):
        check("chain", changed(found, k, accesses=row))


def test_a_result_that_lies_elsewhere():
    _, found = read("chain")
    k = find(found, lambda t: t.accesses[-1].slice.allocation in _temporary(found))
    place = found.thunks[k].accesses[-1].slice
    moved = Slice(place.allocation, place.offset + 256, place.size)
    with pytest.raises(CheckError, match="not its results|out of bounds"):
        check("chain", changed(found, k, accesses=at(found.thunks[k], -1, moved)))


def _temporary(executable):
    outputs = {output.allocation for output in executable.outputs.values()}
    return set(executable.sizes) - set(executable.parameters) - outputs


def test_beyond_its_allocation():
    _, found = read("chain")
    place = found.thunks[0].accesses[0].slice
    moved = Slice(place.allocation, found.sizes[place.allocation], place.size)
    with pytest.raises(CheckError, match="out of bounds"):
        check("chain", changed(found, 0, accesses=at(found.thunks[0], 0, moved)))


def test_another_order():
    _, found = read("chain")
    thunks = (found.thunks[1], found.thunks[0], *found.thunks[2:])
    with pytest.raises(CheckError, match="runs too late, after"):
        check("chain", dataclasses.replace(found, thunks=thunks))


def test_a_missing_thunk():
    _, found = read("chain")
    for k, thunk in enumerate(found.thunks):
        rest = (*found.thunks[:k], *found.thunks[k + 1 :])
        with pytest.raises(CheckError, match=f"no thunk runs {thunk.name}$"):
            check("chain", dataclasses.replace(found, thunks=rest))


def test_a_thunk_of_nothing():
    _, found = read("chain")
    with pytest.raises(CheckError, match="belongs to no instruction of"):
        check("chain", changed(found, 0, name="nothing"))


def test_roles():
    _, found = read("chain")
    thunk = found.thunks[0]
    row = tuple(dataclasses.replace(a, reads=True, writes=False) for a in thunk.accesses)
    with pytest.raises(CheckError, match=r"does not write the result"):
        check("chain", changed(found, 0, accesses=row))
    row = tuple(dataclasses.replace(a, reads=False, writes=True) for a in thunk.accesses)
    with pytest.raises(CheckError, match=r"writes the operand"):
        check("chain", changed(found, 0, accesses=row))


@pytest.mark.parametrize(("name", "number"), [("branches", 0), ("until", 0)])
def test_what_decides(name, number):
    _, found = read(name)
    k = find(found, lambda t: t.flow in (Flow.BRANCH, Flow.LOOP))
    moved = Slice(max(found.sizes), 0, 1)
    with pytest.raises(CheckError, match="instead of its condition|out of bounds"):
        check(name, changed(found, k, accesses=at(found.thunks[k], number, moved)))


def test_branches_in_another_order():
    _, found = read("branches")
    k = find(found, lambda t: t.flow is Flow.BRANCH)
    with pytest.raises(CheckError, match="belongs to no instruction of"):
        check("branches", changed(found, k, inner=found.thunks[k].inner[::-1]))


def _loop(executable):
    """Number of a loop, of its body, and of a start and its done in that."""
    for k, thunk in enumerate(executable.thunks):
        body = thunk.inner[1] if thunk.flow is Flow.LOOP else ()
        for i, start in enumerate(body):
            if start.flow is Flow.START:
                ends = (j for j, t in enumerate(body) if t.flow is Flow.DONE)
                return k, i, next(j for j in ends if body[j].execution == start.execution)
    raise AssertionError


def _with_body(executable, k, body):
    return changed(executable, k, inner=(executable.thunks[k].inner[0], tuple(body)))


def test_a_start_whose_bytes_are_reused():
    """What runs beside it is put over a part of what it works on."""
    _, found = read("scan")
    k, start, done = _loop(found)
    body = list(found.thunks[k].inner[1])
    works = body[start].inner[0][0].accesses[0].slice
    other = next(j for j, t in enumerate(body) if t.flow is Flow.NONE and not start < j < done)
    thunk = body.pop(other)
    part = Slice(works.allocation, works.offset, 4)
    between = start + 1 if other > start else start
    body.insert(between, dataclasses.replace(thunk, accesses=at(thunk, -1, part)))
    with pytest.raises(CheckError, match="still uses|runs too late"):
        check("scan", _with_body(found, k, body))


def test_a_done_that_is_missing_or_of_another():
    _, found = read("scan")
    k, start, done = _loop(found)
    body = list(found.thunks[k].inner[1])
    without = [t for j, t in enumerate(body) if j != done]
    with pytest.raises(CheckError, match="nothing waits for|still uses"):
        check("scan", _with_body(found, k, without))
    body[done] = dataclasses.replace(body[done], execution=body[done].execution + 1000)
    with pytest.raises(CheckError, match="does not wait for the operation"):
        check("scan", _with_body(found, k, body))


def test_arguments_and_results():
    _, found = read("swapped")
    with pytest.raises(CheckError, match="argument 0 in allocation"):
        turned = dict(zip(found.parameters, reversed(found.parameters.values()), strict=True))
        check("swapped", dataclasses.replace(found, parameters=turned))
    with pytest.raises(CheckError, match="is not in the memory that the caller reads"):
        first, second = found.outputs[(0,)], found.outputs[(1,)]
        outputs = {**found.outputs, (0,): second, (1,): first}
        check("swapped", dataclasses.replace(found, outputs=outputs))
    with pytest.raises(CheckError, match="memory of the argument that it"):
        kept = {i: dataclasses.replace(o, parameter=None) for i, o in found.outputs.items()}
        check("swapped", dataclasses.replace(found, outputs=kept))


def test_a_kind_that_is_not_known_touches_all_that_its_instruction_does(monkeypatch):
    known = gpu_executable.KINDS
    for kind, name in (("fft", "fft"), ("custom_kernel", "scan"), ("custom_kernel", "exchanged")):
        kinds = {k: v for k, v in known.items() if v.name != kind}
        monkeypatch.setattr(gpu_executable, "KINDS", kinds)
        found = read_gpu_executable(serialized(name), unsnapped)
        assert found.unknown_kinds
        check(name, found)
    found = read_gpu_executable(serialized("scan"), unsnapped)
    k, start, done = _loop(found)
    body = list(found.thunks[k].inner[1])
    body.insert(len(body), body.pop(done))
    with pytest.raises(CheckError, match=r"\(field 36\) accesses|runs too late"):
        check("scan", _with_body(found, k, body))
    assert start < done


def test_a_slice_that_is_copied_by_itself():
    """A copy of a part of an array begins where the slice does."""
    _, found = read("sliced")
    k = find(found, lambda t: t.kind == "device_to_device_copy")
    place = found.thunks[k].accesses[0].slice
    assert place.offset % found.sizes[place.allocation]
    moved = Slice(place.allocation, place.offset - 4, place.size)
    with pytest.raises(CheckError, match="reads bytes that are not its operands"):
        check("sliced", changed(found, k, accesses=at(found.thunks[k], 0, moved)))

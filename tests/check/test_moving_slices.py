"""Slices that a GPU's host addresses by the number of an iteration, held to the module's index."""

import dataclasses

import pytest

from olla_xla.check.executable.moving_slices import check_moving_slices
from olla_xla.check.executable.program import read_program
from tests.support.gpu_executables import STEPS, read

pytestmark = pytest.mark.cuda13


def changed(executable, change):
    """The executable with each moving slice that is cut changed."""

    def of(thunk):
        slices = tuple(change(s) if s.is_cut else s for s in thunk.slices)
        inner = tuple(tuple(map(of, sequence)) for sequence in thunk.inner)
        return dataclasses.replace(thunk, slices=slices, inner=inner)

    return dataclasses.replace(executable, thunks=tuple(map(of, executable.thunks)))


@pytest.mark.parametrize("name", STEPS)
def test_what_xla_makes_is_accepted(name):
    module, found = read(name)
    followed = check_moving_slices(read_program(module), found)
    cut = [s for thunk in found.all_thunks for s in thunk.slices if s.is_cut]
    assert followed.slices == len(cut)
    assert not followed.left and not followed.wrong
    if name in ("offloaded", "scan"):
        assert followed.addresses == 4 * len(cut)  # iterations of each of their loops


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s._replace(stride=-s.stride, start=0 if s.stride < 0 else 3 * s.stride),
        lambda s: s._replace(stride=2 * s.stride),
        lambda s: s._replace(start=s.start + s.size if not s.start else 0),
        lambda s: s._replace(stride=0),
        lambda s: s._replace(table=(s.start, s.start + s.stride)),
        lambda s: s._replace(loop=s.loop + 1),
        lambda s: s._replace(size=s.size // 2),
        lambda s: s._replace(size=2 * s.size),
    ],
    ids="backwards twice shifted still table outer half double".split(),
)
@pytest.mark.parametrize("name", ["offloaded", "scan"])
def test_another_address_is_refused(name, change):
    module, found = read(name)
    wrong = check_moving_slices(read_program(module), changed(found, change)).wrong
    cut = {t.name for t in found.all_thunks if any(s.is_cut for s in t.slices)}
    assert {said.split()[1] for said in wrong} <= cut
    assert wrong and all("dynamic_slice_fusion" in said for said in wrong)


def test_the_same_addresses_as_a_table_are_accepted():
    module, found = read("offloaded")

    def listed(s):
        return s._replace(table=tuple(s.start + k * s.stride for k in range(4)), start=1, stride=1)

    assert check_moving_slices(read_program(module), changed(found, listed)).addresses

"""Slices that a GPU's host addresses by the number of an iteration, held to the module's index."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from hlo.gpu_executable import read_gpu_executable
from olla_xla.check.executable.moving_slices import check_moving_slices
from olla_xla.check.executable.program import read_program
from olla_xla.compile.accounting import final_module
from olla_xla.compile.gpu_code import serialized_executable
from olla_xla.memory.snappy import unsnapped
from olla_xla.remat import rewritten
from tests.support.compiles import h100_device
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


def _layers(weights, x):
    """A step whose layers each scale what they read; a plan slices the scales again, backwards."""

    def layer(h, given):
        w, scale = given
        scaled = h * jax.lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-5) * scale
        return h + jnp.tanh(scaled @ w), None

    def loss(weights):
        return (jax.lax.scan(layer, x, weights)[0] ** 2).mean()

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def _planned():
    one = jax.sharding.SingleDeviceSharding(h100_device())
    shapes = ((6, 256, 256), (6, 256)), (2048, 256)
    given = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s, jnp.float32, sharding=one),
        shapes,
        is_leaf=lambda s: isinstance(s[0], int),
    )
    return olla_xla.plan(_layers, max_overhead=0.5, donate_argnums=0).lower(*given).compile()


def test_slices_that_a_plan_takes_again_begin_where_their_index_says():
    step = _planned()
    assert step.planned and step.plan.loops
    executable = read_gpu_executable(serialized_executable(step.stage), unsnapped)
    followed = check_moving_slices(read_program(final_module(step.stage)), executable)
    assert followed.addresses and not followed.left and not followed.wrong


def test_a_plan_with_the_forward_loop_s_addresses_is_refused(monkeypatch):
    monkeypatch.setattr(rewritten, "drop_slice_offsets", lambda proto, before: None)
    with pytest.warns(olla_xla.PlanWarning, match="but the index of"):
        assert not _planned().planned

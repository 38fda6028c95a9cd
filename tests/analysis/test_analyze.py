"""`olla_xla.analyze`: any function, here or for a device that is not there, planned or not."""

import json
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies
from jax.experimental.layout import Format, Layout

import olla_xla
from examples.zoo import load
from olla_xla.analysis.category import Category
from olla_xla.analysis.donation import DonationOutcome, why_lost
from olla_xla.analysis.leaves import Leaf
from tests.support import plugins
from tests.support.compiles import H100, h100_device
from tests.support.steps import plan

SHAPE = jax.ShapeDtypeStruct((256, 256), jnp.float32)


def outcomes(analysis):
    return {row.path: (row.outcome, row.why) for row in analysis.donation.rows}


@pytest.mark.parametrize("target", ["cpu", plugins.H100])
def test_a_model(target):
    if target == "h100":
        h100_device()
    step, arguments, options = load("lenet")(batch_size=16, optimizer="adam")
    analysis = olla_xla.analyze(jax.jit(step, **options), *arguments, target=target)
    view = analysis.xla
    assert view.assigned and sum(view.by_category().values()) == view.total_bytes
    assert view.found_share > 0.95
    assert analysis.lower_bound_bytes <= view.live_bytes
    found = view.by_category()
    assert found[Category.PARAMETERS] and found[Category.OPTIMIZER] and found[Category.BATCH]
    assert analysis.donation.requested == len(jax.tree.leaves(arguments[0]))
    assert analysis.donation.count(DonationOutcome.LOST, DonationOutcome.POSSIBLE) == 0
    assert any("zoo/lenet.py" in line for line in view.by_line())
    assert any(module.startswith("LeNet") for module in view.by_module())
    json.dumps(analysis.to_dict(timeline=True))
    text = analysis._repr_html_()
    assert "parameters" in text and "lenet.py" in text


def test_a_planned_function_is_seen_in_both_orders():
    step, arguments, options = load("mlp")(batch_size=64, optimizer="adam")
    analysis = olla_xla.analyze(plan(step, **options), *arguments, title="mine")
    assert analysis.title == "mine" and analysis.planned is not None
    assert analysis.planned.total_bytes == analysis.plan.assigned_bytes
    assert analysis.lower_bound_bytes <= analysis.planned.total_bytes <= analysis.xla.total_bytes
    again = olla_xla.analyze(
        jax.jit(step, **options), *arguments, plan={"time_limit": 20, "step_limit": 50_000}
    )
    assert again.planned.total_bytes == analysis.planned.total_bytes


def test_a_plain_function_and_keywords():
    analysis = olla_xla.analyze(lambda x, *, w: jnp.tanh(x @ w).sum(), SHAPE, w=SHAPE)
    assert {t.argument for t in analysis.xla.tensors} >= {"x", "w"}
    with pytest.raises(olla_xla.InputError, match="takes a function"):
        olla_xla.analyze(3)


def test_causes_of_lost_donation():
    """One step for each cause; the audit names argument and cause, and nothing warns."""

    def several(shape, dtype, taken, taken_too, unread, kept):
        large = jnp.dot(shape, shape)
        return large[:128], dtype.astype(jnp.bfloat16), taken + taken_too, kept + 1

    arguments = {
        "shape": SHAPE,
        "dtype": jax.ShapeDtypeStruct((64, 32), jnp.float32),
        "taken": jax.ShapeDtypeStruct((48, 32), jnp.float32),
        "taken_too": jax.ShapeDtypeStruct((48, 32), jnp.float32),
        "unread": jax.ShapeDtypeStruct((7, 7), jnp.float32),
        "kept": jax.ShapeDtypeStruct((80, 32), jnp.float32),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        analysis = olla_xla.analyze(
            jax.jit(several, donate_argnums=(0, 1, 2, 3, 4)), *arguments.values()
        )
    found = outcomes(analysis)
    assert found["shape"][0] in (DonationOutcome.LOST, DonationOutcome.REUSED)
    assert "float32[256,256], that of output result[0] is float32[128,256]" in found["shape"][1]
    assert found["dtype"][1].startswith("the argument's dtype is float32, that of output result[1]")
    one, other = found["taken"], found["taken_too"]
    assert one[0] is DonationOutcome.ALIASED and "other arguments' memory already holds" in other[1]
    unread = next(why for path, why in found.items() if "4" in path or path == "unread")
    assert unread[0] is DonationOutcome.UNREAD
    assert found["kept"][0] is DonationOutcome.POSSIBLE and "result[3]" in found["kept"][1]


def test_a_reader_after_the_writer():
    """The second product needs the old and the new value: XLA has to copy."""

    def step(w, x):
        new = w @ x
        return new, new @ w

    analysis = olla_xla.analyze(jax.jit(step, donate_argnums=0), SHAPE, SHAPE)
    outcome, why = outcomes(analysis)["w"]
    assert outcome is DonationOutcome.COPIED and "reads the argument after" in why
    assert "test_analyze.py:" in why


def test_arguments_that_swap_places():
    analysis = olla_xla.analyze(jax.jit(lambda a, b: (b, a), donate_argnums=(0, 1)), SHAPE, SHAPE)
    assert all(o is DonationOutcome.COPIED for o, _ in outcomes(analysis).values())


def test_a_layout_that_differs():
    """XLA lets the output take over the memory all the same, and copies."""
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    other = Format(Layout(major_to_minor=(1, 0)), where)
    jitted = jax.jit(lambda x: jnp.sin(x), donate_argnums=0, out_shardings=other)
    outcome, why = outcomes(olla_xla.analyze(jitted, SHAPE))["x"]
    assert outcome is DonationOutcome.COPIED
    assert why == "the argument's layout is (0, 1), that of output result is (1, 0)"
    x = Leaf("x", (2, 3), "f", 24, donated=True, number=0, layout="01")
    y = Leaf("y", (2, 3), "f", 24, layout="10")
    assert why_lost(x, [y], []) == ("y", "the argument's layout is 01, that of output y is 10")


@pytest.mark.cuda13
def test_shardings_that_differ():
    h100_device()
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=H100.read_text(), topology="1x1x2"
    )
    mesh = jax.sharding.Mesh(topology.devices, "d")
    split, whole = (jax.sharding.NamedSharding(mesh, jax.P(name)) for name in ("d", None))
    argument = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=split)
    jitted = jax.jit(lambda x: jnp.sin(x), donate_argnums=0, out_shardings=whole)
    outcome, why = outcomes(olla_xla.analyze(jitted, argument))["x"]
    assert outcome in (DonationOutcome.LOST, DonationOutcome.REUSED)
    assert why.startswith("the argument's sharding is") and "output result" in why


def test_plan_loads_none_of_it():
    """What audits donations takes numba, for which the first compile need not wait."""
    code = "import sys, olla_xla; olla_xla.plan; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_random_bits_take_no_longer_than_other_operators():
    """Threefry's words are each made of two others: paths double at each of its rounds."""

    def draws(key, x):
        for _ in range(30):
            key, own = jax.random.split(key)
            x = jax.nn.relu(jax.random.normal(own, (64, 64)) @ x + 1)
        return x

    analysis = olla_xla.analyze(draws, jax.random.key(0), jnp.ones((64, 64)))
    assert 0 < analysis.bound.bytes <= analysis.xla.live_bytes


def test_functions_that_libraries_jit():
    nnx, equinox = pytest.importorskip("flax.nnx"), pytest.importorskip("equinox")
    x = jnp.ones((64, 256))
    linear = nnx.Linear(256, 256, rngs=nnx.Rngs(0))
    mlp = equinox.nn.MLP(256, 8, 64, 1, key=jax.random.key(0))
    for jit, model in (
        (nnx.jit, linear),
        (lambda f: nnx.jit(f, graph_updates=False), linear),
        (equinox.filter_jit, jax.tree.map(lambda leaf: leaf, mlp)),
    ):
        step = jit(lambda model, x: jax.vmap(model)(x).sum())
        analysis = olla_xla.analyze(step, model, x)
        assert analysis.xla.total_bytes > 256 * 64 * 4
        assert any("256,256" in t.shape or "64,256" in t.shape for t in analysis.xla.tensors)

    class Lazy:
        def lower(self, *args):
            return "text"

        def __call__(self, *args):
            return 0

    with pytest.raises(olla_xla.InputError, match="not a jax.stages.Lowered"):
        olla_xla.analyze(Lazy(), x)

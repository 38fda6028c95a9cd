"""Small steps, with arguments, for the tests of the decorator."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import olla_xla
from examples.zoo import common, load, resnet
from olla_xla import planner
from tests.support.drawn import normal, normals

plan = functools.partial(olla_xla.plan, time_limit=20, step_limit=50_000)
WIDTH = 64


def small_resnet():
    network = common.linen_network(
        resnet.ResNet((1,), resnet.Bottleneck, 10), common.image_batches(16, 3, 10)
    )
    return common.build(network, batch_size=4, optimizer="momentum")


STEPS = {
    "mlp": lambda: load("mlp")(batch_size=8, optimizer="adam"),
    "lenet": lambda: load("lenet")(batch_size=16, optimizer="momentum"),
    "resnet": small_resnet,
}


def arrays(shapes):
    """Small positive numbers in the given shapes: also valid as second moments and labels."""
    generator = np.random.default_rng(0)
    return jax.tree.map(
        lambda a: jnp.asarray(generator.uniform(0, 0.05, a.shape).astype(a.dtype)), shapes
    )


def branches(weights, x):
    """One large temporary a branch; XLA's CPU order keeps several at once."""
    hidden = [jnp.tanh(x @ w) for w in weights]
    return [w * jnp.sum(h @ h.T) for w, h in zip(weights, hidden, strict=True)]


def weights(count=6):
    return normals(*[(WIDTH, WIDTH)] * count, scale=1 / 8)


def rows(count=WIDTH):
    return normal(count, WIDTH, seed=9)


def assert_same(expected, got):
    assert jax.tree.structure(expected) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)


def count_searches(monkeypatch):
    """A list that gets the name of every module that is searched for an order."""
    names, search = [], planner.plan_module

    def counted(module, options, **kwargs):
        found = search(module, options, **kwargs)
        names.append(found.module)
        return found

    monkeypatch.setattr(planner, "plan_module", counted)
    return names

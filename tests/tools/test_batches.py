"""Where the batch lies among a model's arguments, and how it is divided among devices."""

import jax
import jax.numpy as jnp
import pytest

from olla_xla import targets
from olla_xla.errors import InputError
from olla_xla.tools import models


def model(batch, make):
    return models.BuiltModel("m", batch, "sgd", jnp.sin, make(batch), {}, make)


def test_the_axis_is_where_two_sizes_differ():
    def make(n):
        batch = {"x": jnp.zeros((3, n)), "y": jnp.zeros(n), "key": jax.random.key(0)}
        return {"w": jnp.zeros((4, 4)), "none": None}, batch, 7

    axes = models.batch_axes(model(1, make), model(2, make))
    assert axes == ({"w": -1, "none": None}, {"x": 1, "y": 0, "key": -1}, -1)
    with pytest.raises(InputError, match="no argument of model m depends on batch_size"):
        models.batch_axes(model(1, lambda n: (1.0,)), model(2, lambda n: (1.0,)))


@pytest.mark.cuda13
def test_devices_share_the_batch():
    step, arguments = models.steps("mlp", "sgd", targets.target("h100", 4))(8)
    lowered = step.lower(*arguments)
    shardings = jax.tree.leaves(lowered.compile().input_shardings)
    split = [s for s in shardings if not s.is_fully_replicated]
    assert 0 < len(split) < len(shardings)
    assert {s.shard_shape((8, 4, 4, 4)) for s in split} == {(2, 4, 4, 4)}


def test_one_device_has_everything():
    step, arguments = models.steps("mlp", "sgd", targets.target("cpu"))(3)
    lowered = step.lower(*arguments)
    assert {a.shape[0] for a in jax.tree.leaves(lowered.args_info[0][1])} == {3}

"""The zoo that the trainers use: optimizers, dtypes, sizes and states."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from examples import training
from examples.zoo import common, gpt, lenet, mlp, resnet


def _signature(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def _leaf_shapes(tree):
    return [leaf.shape for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [("sgd", 1), ("momentum", 2), ("adam", 3), ("adam_clip", 3), ("adam_accum", 4)],
)
def test_optimizer_state_size(optimizer, copies):
    _, (state, _), _ = lenet.lenet(batch_size=1, optimizer=optimizer)
    floats = sum(x.size for x in jax.tree.leaves(state) if x.dtype == jnp.float32)
    assert floats == copies * 61_706


def test_unknown_optimizer():
    with pytest.raises(
        ValueError, match="'lion'; known optimizers: adam, adam_accum, adam_clip, momentum, sgd$"
    ):
        mlp.mlp(batch_size=1, optimizer="lion")


def test_unknown_dtype():
    with pytest.raises(ValueError, match="unknown dtype 'int8'; known dtypes: bfloat16, float32$"):
        mlp.mlp(batch_size=1, optimizer="sgd", dtype="int8")


def test_clipped_gradients():
    clip = common.make_optimizer("adam_clip")
    params = jnp.zeros(2)
    _, state = clip.update(jnp.array([3.0, 4.0]), clip.init(params), params)
    first_moment = optax.tree.get(state, "mu")
    assert jnp.allclose(first_moment, 0.1 * jnp.array([0.6, 0.8]))


def test_accumulated_gradients():
    # Steps of one example each move the parameters once, as one step of all of them does.
    network = common.linen_network(mlp.MLP((64, 32)), common.image_batches(8, 1, 10))
    options = training.Options(steps=1, batch_size=common.ACCUMULATED_STEPS, optimizer="adam")
    whole, whole_state, batch = training.network_step(network, options)
    expected, _ = jax.jit(whole)(whole_state, batch)
    transformation = common.make_optimizer("adam_accum")
    step = jax.jit(common.make_train_step(network, transformation))
    first = whole_state["params"]
    state = whole_state | {"opt_state": transformation.init(first)}
    for index in range(common.ACCUMULATED_STEPS):
        assert jax.tree.all(jax.tree.map(np.array_equal, state["params"], first))
        state, _ = step(state, jax.tree.map(lambda x, i=index: np.asarray(x)[i : i + 1], batch))
    # Adam's first update is the sign of the gradient wherever that is not close to zero.
    close = jax.tree.map(
        lambda a, b: np.mean(np.abs(np.asarray(a) - np.asarray(b)) < 1e-5),
        state["params"],
        expected["params"],
    )
    assert min(float(share) for share in jax.tree.leaves(close)) > 0.99


def test_empty_batch():
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        mlp.mlp(batch_size=0, optimizer="sgd")


def test_unknown_resnet_depth():
    with pytest.raises(ValueError, match="unknown ResNet depth 19"):
        resnet.network(19)


def test_width_no_multiple_of_heads():
    with pytest.raises(ValueError, match="width 10 is not a multiple of 3 heads"):
        gpt.network(gpt.GPTConfig(width=10, heads=3))


def test_image_sizes():
    _, (_, batch), _ = resnet.resnet50(batch_size=4, optimizer="momentum")
    assert batch["inputs"].shape == (4, 224, 224, 3)
    _, (_, batch), _ = gpt.gpt(batch_size=2, optimizer="adam")
    assert _leaf_shapes(batch) == [(2, 512), (2, 512)]


def test_init_matches_example_args():
    batches = common.image_batches(8, 1, 10)
    linear = common.Model(lambda: common.linen_network(mlp.MLP(()), batches))
    _, example_args, _ = linear(batch_size=2, optimizer="momentum")
    arrays = linear.init(2, "momentum", 0)
    assert _signature(arrays) == _signature(example_args)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(arrays))
    other_batch = linear.init(2, "momentum", 1)[1]
    assert not np.array_equal(arrays[1]["inputs"], other_batch["inputs"])


def test_batch_statistics_are_updated():
    network = resnet.network(18, image_size=32, num_classes=10)
    step, (state, batch), _ = common.build(network, batch_size=2, optimizer="sgd")
    jaxpr = jax.make_jaxpr(step)(state, batch).jaxpr
    state_leaves = jax.tree.leaves(state)
    unchanged = [i for i in range(len(state_leaves)) if jaxpr.outvars[i] is jaxpr.invars[i]]
    assert unchanged == []


def test_gpt_is_causal():
    config = gpt.GPTConfig(layers=2, width=16, heads=2, sequence_length=8, vocabulary_size=11)
    network = gpt.network(config)
    tokens = np.arange(8, dtype=np.int32)[None]
    changed = np.where(tokens == 5, 9, tokens)
    params, batch_stats = jax.jit(network.init, compiler_options=training.INIT_OPTIONS)(
        jax.random.key(0), tokens
    )
    apply = jax.jit(network.apply)
    first = np.asarray(apply(params, batch_stats, tokens)[0])
    second = np.asarray(apply(params, batch_stats, changed)[0])
    assert first.shape == (1, 8, 11)
    assert np.allclose(first[:, :5], second[:, :5], atol=1e-6)
    assert not np.allclose(first[:, 5:], second[:, 5:], atol=1e-6)

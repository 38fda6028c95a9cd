"""The example models' shapes and parameter counts, and the trainers without planning."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import optax
import pytest

from examples import train, train_mlp, train_transformer, training
from olla_xla.bench.zoo import common, gpt, lenet, mlp, resnet


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
    network = mlp.network()
    state, _ = mlp.init(1, "adam_accum")
    batch = network.make_batch(jax.random.key(1), common.ACCUMULATED_STEPS)
    whole_state = mlp.init(1, "adam")[0] | {"params": state["params"]}
    whole = jax.jit(common.make_train_step(network, common.make_optimizer("adam")))
    expected, _ = whole(whole_state, batch)
    step = jax.jit(common.make_train_step(network, common.make_optimizer("adam_accum")))
    first = state["params"]
    for index in range(common.ACCUMULATED_STEPS):
        assert jax.tree.all(jax.tree.map(jnp.array_equal, state["params"], first))
        state, _ = step(state, jax.tree.map(lambda x, i=index: x[i : i + 1], batch))
    # Adam's first update is the sign of the gradient wherever that is not close to zero.
    close = jax.tree.map(
        lambda a, b: jnp.mean(jnp.abs(a - b) < 1e-5), state["params"], expected["params"]
    )
    assert min(float(share) for share in jax.tree.leaves(close)) > 0.99


def test_empty_batch():
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        mlp.mlp(batch_size=0, optimizer="sgd")


def test_unknown_resnet_depth():
    with pytest.raises(ValueError, match="unknown ResNet depth 19"):
        resnet.network(19)


def test_width_no_multiple_of_heads():
    with pytest.raises(ValueError, match="width 10 is no multiple of 3 heads"):
        gpt.network(gpt.GPTConfig(width=10, heads=3))


def test_image_sizes():
    _, (_, batch), _ = resnet.resnet50(batch_size=4, optimizer="momentum")
    assert batch["inputs"].shape == (4, 224, 224, 3)
    _, (_, batch), _ = gpt.gpt(batch_size=2, optimizer="adam")
    assert _leaf_shapes(batch) == [(2, 512), (2, 512)]


def test_init_matches_example_args():
    _, example_args, _ = mlp.mlp(batch_size=2, optimizer="momentum")
    arrays = mlp.init(2, "momentum", 0)
    assert _signature(arrays) == _signature(example_args)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(arrays))
    other_batch = mlp.init(2, "momentum", 1)[1]
    assert not jnp.array_equal(arrays[1]["inputs"], other_batch["inputs"])


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
    tokens = jnp.arange(8, dtype=jnp.int32)[None]
    params, batch_stats = jax.jit(network.init)(jax.random.key(0), tokens)
    apply = jax.jit(network.apply)
    first, _ = apply(params, batch_stats, tokens)
    second, _ = apply(params, batch_stats, tokens.at[0, 5].set(9))
    assert first.shape == (1, 8, 11)
    assert jnp.allclose(first[:, :5], second[:, :5], atol=1e-6)
    assert not jnp.allclose(first[:, 5:], second[:, 5:], atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "adam_clip", "momentum", "sgd"])
def test_mlp_trainer_loss_falls(optimizer):
    losses = train_mlp.train(steps=20, batch_size=16, optimizer=optimizer, plan=False)
    assert len(losses) == 20
    assert losses[-1] < 0.5 * losses[0]


def test_transformer_trainer_loss_falls(capsys):
    config = gpt.GPTConfig(layers=1, width=32, heads=2, sequence_length=16, vocabulary_size=32)
    losses = train_transformer.train(
        steps=30, batch_size=2, optimizer="adam", plan=False, config=config
    )
    assert losses[-1] < 0.8 * losses[0]
    assert len(capsys.readouterr().out.splitlines()) == 11


def test_nnx_state_keeps_its_structure():
    step, state = train_transformer.make_nnx_state(
        gpt.GPTConfig(layers=1, width=32, heads=2, sequence_length=8, vocabulary_size=16), "adam"
    )
    batch = common.token_batches(8, 16)(jax.random.key(0), 2)
    new_state, _ = jax.eval_shape(step, state, batch)
    assert _signature(new_state) == _signature(state)


def test_any_model_trains(capsys):
    losses = train.train(
        "lenet", steps=8, batch_size=4, optimizer="adam", plan=False, dtype="bfloat16"
    )
    assert losses[-1] < losses[0]
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_step_is_donated():
    network = mlp.network()
    step = common.make_train_step(network, common.make_optimizer("sgd"))
    state, batch = mlp.init(2, "sgd")
    training.jit_step(step, plan=False)(state, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(batch))


def test_trainer_command_line():
    command = [sys.executable, "-m", "examples.train_mlp", "--noplan", "--steps=3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["step", str(i)] for i in range(3)
    ]

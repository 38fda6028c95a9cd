"""The example models: parameter counts of the literature, tracing, lowering and two steps."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import zoo
from examples.zoo import (
    common,
    efficientnet,
    googlenet,
    gpt,
    llama,
    lstm,
    mobilenet,
    resnet,
    transformer,
    unet,
)
from tests.support.compiles import QUICK

pytestmark = pytest.mark.slow

# The image networks: torchvision's counts (GoogLeNet without its auxiliary classifiers, as in
# evaluation; ResNet3D-18 for Kinetics-400), Inception-ResNet and the Mixer: timm's. GPT-2 small:
# the published checkpoint. XLM-R base: the published checkpoint with its masked-language head.
# U-Net: the 35.7M of the DDPM paper, to the last scalar those of its ports. The Transformer is
# counted by hand below, the other GPTs, the Llamas and the LSTMs are sizes of our own.
LITERATURE = {
    "mlp": 784 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10,
    "lenet": 61_706,
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "googlenet": 6_624_904,
    "inception_resnet": 55_843_464,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet3d18": 33_371_472,
    "mobilenet_v2": 3_504_872,
    "mnasnet": 4_383_312,
    "efficientnet_b0": 5_288_548,
    "vit_b16": 86_567_656,
    "mixer_b16": 59_880_472,
    # Attention 4d^2 + 4d, feed-forward 8d^2 + 5d, a norm 2d: one attention and two norms in a
    # block of the encoder, two and three in the decoder; one embedding of 37,000 tokens.
    "transformer": 6 * (12 * 512**2 + 13 * 512) + 6 * (16 * 512**2 + 19 * 512) + 37000 * 512,
    "xlmr_base": 278_295_186,
    "gpt": 4 * (12 * 768**2 + 13 * 768) + (2 * 32000 + 512 + 2) * 768,
    "gpt2_small": 124_439_808,
    "gpt_scan": 12 * (12 * 768**2 + 13 * 768) + (2 * 32000 + 512 + 2) * 768,
    "llama_scan": 8 * (3 * 512**2 + 3 * 512 * 1408 + 2 * 512) + (2 * 32000 + 1) * 512,
    "llama_scan_saved": 8 * (3 * 512**2 + 3 * 512 * 1408 + 2 * 512) + (2 * 32000 + 1) * 512,
    "lstm": 10000 * 512 + 4 * (8 * 512**2 + 4 * 512) + 513 * 10000,
    "lstm_scan": 10000 * 512 + 4 * (8 * 512**2 + 4 * 512) + 513 * 10000,
    "unet": 35_746_307,
}
BATCH_NORMALIZED = {
    "googlenet",
    "inception_resnet",
    "resnet18",
    "resnet50",
    "resnet3d18",
    "mobilenet_v2",
    "mnasnet",
    "efficientnet_b0",
}
# Sizes at which a model compiles in a second or two. In bfloat16, too, each kind of layer is there.
SMALL = {
    "inception_resnet": {"image_size": 75, "num_classes": 10, "blocks": (1, 1, 1)},
    "vit_b16": {"image_size": 32, "num_classes": 10, "layers": 1, "width": 32, "heads": 2},
    "mixer_b16": {
        "image_size": 32,
        "num_classes": 10,
        "layers": 1,
        "width": 32,
        "token_width": 16,
        "channel_width": 64,
    },
    "transformer": {"config": transformer.TransformerConfig(1, 32, 2, 64, 8, 50)},
    "xlmr_base": {"config": transformer.EncoderConfig(1, 32, 2, 64, 16, 4, 50)},
    "gpt": {"config": gpt.GPTConfig(1, 32, 4, 16, 50)},
    "gpt2_small": {"config": dataclasses.replace(gpt.GPT2_SMALL_CONFIG, layers=1)},
    "gpt_scan": {"config": gpt.GPTConfig(2, 32, 4, 16, 50, scan=True)},
    "llama_scan": {"config": llama.LlamaConfig(2, 32, 4, 2, 48, 16, 50)},
    "llama_scan_saved": {"config": llama.LlamaConfig(2, 32, 4, 2, 48, 16, 50, remat=False)},
    "lstm": {"layers": 2, "width": 32, "sequence_length": 4, "vocabulary_size": 50},
    "lstm_scan": {"layers": 2, "width": 32, "sequence_length": 4, "vocabulary_size": 50},
    "unet": {"width": 32, "multipliers": (1, 1)},
}
# Of the image networks, blocks of each kind.
FEWER_BLOCKS = (
    (efficientnet, "STAGES", efficientnet.STAGES[:2]),
    (googlenet, "STAGES", googlenet.STAGES[:1]),
    (mobilenet, "MOBILENET_V2_STAGES", mobilenet.MOBILENET_V2_STAGES[:2]),
    (mobilenet, "MNASNET_STAGES", mobilenet.MNASNET_STAGES[:2]),
    (resnet, "STAGE_SIZES", {18: (1, 1), 50: (2, 1)}),
    (unet, "RESIDUAL_BLOCKS", 1),
)


def _signature(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def _products(jaxpr):
    """The operand dtypes of every matrix product and convolution, in calls and loops too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            yield from (operand.aval.dtype for operand in equation.invars)
        for value in jax.tree.leaves(tuple(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _products(inner)


def test_names():
    assert set(LITERATURE) == set(zoo.MODELS)
    assert len(zoo.ZOO) == 20


def test_unknown_model():
    with pytest.raises(ValueError, match="unknown model 'resnet'; known models: alexnet, "):
        zoo.load("resnet")


@pytest.mark.parametrize("name", zoo.MODELS)
def test_an_example_computes_in_bfloat16_what_it_keeps_in_float32(name, monkeypatch):
    load, few = zoo.load(name), {"sequence_length": 16} if name == "lstm" else {}
    _, example_args, jit_kwargs = load(batch_size=32, optimizer="sgd", dtype="bfloat16", **few)
    state, batch = example_args
    assert jit_kwargs == {"donate_argnums": (0,)}
    assert all(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(example_args))
    assert {leaf.shape[0] for leaf in jax.tree.leaves(batch)} == {32}
    assert common.parameter_count(state) == LITERATURE[name]
    floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert {x.dtype for x in floats} == {jnp.dtype("float32")}
    statistics = sum(x.size for x in jax.tree.leaves(state["batch_stats"]))
    assert sum(x.size for x in floats) == LITERATURE[name] + statistics
    assert (statistics > 0) == (name in BATCH_NORMALIZED)
    for module, constant, value in FEWER_BLOCKS:  # traced in a fraction of the time
        monkeypatch.setattr(module, constant, value)
    sizes = SMALL.get(name, {})
    step, example_args, _ = load(batch_size=32, optimizer="sgd", dtype="bfloat16", **sizes)
    traced = jax.jit(step, **jit_kwargs).trace(*example_args)
    new_state, loss = traced.out_info
    assert _signature(new_state) == _signature(example_args[0])
    assert (loss.shape, loss.dtype) == ((), jnp.float32)
    assert set(_products(traced.jaxpr.jaxpr)) == {jnp.dtype("bfloat16")}


def quick(function):
    return jax.jit(function, compiler_options=QUICK)


def _batch(network, size):
    return quick(lambda key: network.make_batch(key, size))(jax.random.key(0))


def _filled(state):
    """A state of that signature: random matrices, vectors of ones and the rest zeros.

    Drawing the parameters as the model does would compile for longer than the step.
    """
    rng = np.random.default_rng(0)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.05, leaf.shape) if leaf.ndim > 1 else np.ones(leaf.shape),
        state["params"],
    )
    return zeros | {"params": jax.tree.map(lambda array: np.asarray(array, np.float32), params)}


def _parameters(network, inputs):
    shapes, _ = jax.eval_shape(network.init, jax.random.key(1), inputs)
    return _filled({"params": shapes})["params"]


@pytest.mark.parametrize(
    ("name", "optimizer", "dtype"),
    [
        ("vit_b16", "momentum", "float32"),
        ("mixer_b16", "sgd", "bfloat16"),
        ("transformer", "adam", "float32"),
        ("xlmr_base", "sgd", "bfloat16"),
        ("llama_scan", "sgd", "bfloat16"),
        ("lstm", "adam_clip", "float32"),
        ("gpt_scan", "sgd", "float32"),
    ],
)
def test_two_steps(name, optimizer, dtype):
    model, sizes = zoo.load(name), SMALL[name]
    step, (state, _), jit_kwargs = model(batch_size=2, optimizer=optimizer, dtype=dtype, **sizes)
    batch = _batch(model.network(**sizes), 2)
    lowered = jax.jit(step, **jit_kwargs).lower(state, batch)
    compiled = lowered.compile(compiler_options=QUICK)
    state, first = compiled(_filled(state), batch)
    state, second = compiled(state, batch)
    assert math.isfinite(first)
    assert float(second) < float(first)
    assert int(state["step"]) == 2


@pytest.mark.parametrize(
    ("network", "count"),
    [
        (llama.network(llama.LLAMA2_7B_CONFIG), 6_738_415_616),
        (llama.network(llama.TINY_LLAMA_CONFIG), 1_100_048_384),
        # Zaremba et al. say 20 and 66 million.
        (lstm.network(layers=2, width=650, sequence_length=1), 19_775_200),
        (lstm.network(layers=2, width=1500, sequence_length=1), 66_022_000),
    ],
    ids=["llama2_7b", "tiny_llama", "lstm_medium", "lstm_large"],
)
def test_other_sizes_of_the_literature(network, count):
    _, (state, _), _ = common.build(network, batch_size=1, optimizer="sgd")
    assert common.parameter_count(state) == count


def test_masked_tokens():
    config = transformer.EncoderConfig(sequence_length=16, masked=4, vocabulary_size=50)
    batch = _batch(transformer.xlmr_network(config), 3)
    tokens, positions = batch["inputs"]["tokens"], batch["inputs"]["positions"]
    assert jnp.all(jnp.diff(positions, axis=1) > 0)
    assert jnp.all(jnp.take_along_axis(tokens, positions, axis=1) == 49)
    assert int((tokens == 49).sum()) == 12
    assert jnp.all(batch["labels"] < 49)


def test_transformer_sees_the_source_and_only_the_past():
    config = dataclasses.replace(SMALL["transformer"]["config"], sequence_length=4)
    network = transformer.transformer_network(config)
    inputs = _batch(network, 1)["inputs"]
    params = _parameters(network, inputs)
    apply = quick(lambda inputs: network.apply(params, {}, inputs)[0])
    logits = apply(inputs)
    later = apply(inputs | {"target": inputs["target"].at[0, 2].add(1)})
    assert jnp.allclose(logits[:, :2], later[:, :2], atol=1e-6)
    assert not jnp.allclose(logits[:, 2:], later[:, 2:], atol=1e-6)
    other = apply(inputs | {"source": inputs["source"].at[0, 3].add(1)})
    assert not jnp.allclose(logits[:, 0], other[:, 0], atol=1e-6)


def test_smoothed_cross_entropy():
    logits = jnp.array([[2.0, 0.0, -1.0]])
    target = jnp.array([[0.9 + 0.1 / 3, 0.1 / 3, 0.1 / 3]])
    expected = -(target * jax.nn.log_softmax(logits)).sum()
    loss = transformer.smoothed_cross_entropy(logits, jnp.array([0]))
    assert jnp.allclose(loss, expected, rtol=1e-6)


def test_llama_refuses_uneven_heads():
    with pytest.raises(ValueError, match="width 10 is not a multiple of 3 heads"):
        llama.LlamaConfig(width=10, heads=3)
    with pytest.raises(ValueError, match="8 heads are no multiple of 3 key-value heads"):
        llama.LlamaConfig(key_value_heads=3)


def test_remat_keeps_the_loss_and_the_state():
    config = SMALL["llama_scan"]["config"]
    built = {}
    for remat in (True, False):
        network = llama.network(dataclasses.replace(config, remat=remat))
        step, example_args, _ = common.build(network, batch_size=2, optimizer="sgd")
        built[remat] = str(jax.make_jaxpr(step)(*example_args))
    assert "remat" in built[True]
    assert "remat" not in built[False]


def _scans(jaxpr):
    """The lengths of the scans, outer ones first."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation.params["length"]
        for value in jax.tree.leaves(tuple(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _scans(inner)


@pytest.mark.parametrize(
    ("name", "length"), [("gpt_scan", 2), ("llama_scan_saved", 2), ("lstm_scan", 4)]
)
def test_scanned_models_scan_once_each_way_and_rematerialise_nothing(name, length):
    step, example_args, _ = zoo.load(name)(batch_size=2, optimizer="sgd", **SMALL[name])
    jaxpr = jax.make_jaxpr(step)(*example_args)
    assert list(_scans(jaxpr.jaxpr)) == [length, length]
    assert "remat" not in str(jaxpr)


def test_scanned_gpt_is_the_unrolled_one():
    scanned = SMALL["gpt_scan"]["config"]
    network = gpt.network(scanned)
    inputs = _batch(network, 2)["inputs"]
    params = _parameters(network, inputs)
    stacked = params["blocks"][0]["stacked"]
    blocks = {k: jax.tree.map(lambda leaf, k=k: leaf[k], stacked) for k in range(scanned.layers)}
    unrolled = gpt.network(dataclasses.replace(scanned, scan=False))
    expected, _ = quick(unrolled.apply)(params | {"blocks": blocks}, {}, inputs)
    assert jnp.allclose(quick(network.apply)(params, {}, inputs)[0], expected, atol=1e-5)


def test_scanned_lstm_is_the_unrolled_one():
    sizes = SMALL["lstm"]
    network, unrolled = lstm.network(**sizes, scan=True), lstm.network(**sizes)
    inputs = _batch(network, 2)["inputs"]
    params = _parameters(network, inputs)
    expected, _ = quick(unrolled.apply)(params, {}, inputs)
    assert jnp.allclose(quick(network.apply)(params, {}, inputs)[0], expected, atol=1e-5)


def test_gpt2_reads_512_of_its_1024_positions():
    _, (state, batch), _ = zoo.load("gpt2_small")(batch_size=1, optimizer="sgd")
    assert batch["inputs"].shape == (1, 512)
    assert state["params"]["positions"]["embedding"].shape == (1024, 768)
    assert gpt.GPT2_SMALL_CONFIG.tied_head

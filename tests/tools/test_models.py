"""Models by name, the user's own ones included."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from olla_xla.errors import InputError, OllaError
from olla_xla.tools import models

pytestmark = pytest.mark.quick

OWN = """
import jax, jax.numpy as jnp

def step(w, x):
    return w - 0.1 * x.sum(), x

def make(*, batch_size, optimizer):
    shape = jax.ShapeDtypeStruct((batch_size, 4), jnp.float32)
    return step, (jnp.ones(4), shape), {"donate_argnums": (0,)}

def picky(*, batch_size, optimizer):
    raise ValueError(f"no optimizer {optimizer}\\nand more lines")

def plain(batch_size):
    return make(batch_size=batch_size, optimizer="")[:2]

def wrong(*, batch_size, optimizer):
    return 3

def uncallable(*, batch_size, optimizer):
    return 1, (), {}

not_a_function = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A package of the user's in the working directory."""
    (tmp_path / "own_models.py").write_text(OWN)
    (tmp_path / "broken_model.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "own_models"
    sys.modules.pop("own_models", None)


def test_own_function(own):
    model = models.build(f"{own}:make", batch_size=3, optimizer="sgd")
    assert model.arguments[1].shape == (3, 4) and model.jit_options == {"donate_argnums": (0,)}
    first, again = model.arrays(seed=1), model.arrays(seed=1)
    assert first[0] is not again[0]  # a donated one can be used once
    assert np.array_equal(first[1], again[1]) and first[1].shape == (3, 4)
    assert not np.array_equal(first[1], model.arrays(seed=2)[1])


def test_shapes_of_every_kind_are_filled():
    key = jax.eval_shape(lambda: jax.random.key(0))
    shapes = (key, jax.ShapeDtypeStruct((2,), jnp.bfloat16), jax.ShapeDtypeStruct((2,), jnp.int32))
    model = models.BuiltModel("m", 1, "sgd", lambda *a: a, shapes, {}, lambda: None)
    k, floats, ints = model.arrays()
    assert k.dtype == key.dtype and floats.dtype == jnp.bfloat16 and not ints.any()


def test_a_function_may_take_no_optimizer_and_give_no_options(own):
    built = models.build("own_models:plain", batch_size=3, optimizer="adam")
    assert built.arguments[1].shape == (3, 4) and not built.jit_options


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet5O", "unknown model 'resnet5O'; choose one of"),
        ("no_such_package:make", "cannot import model no_such_package:make"),
        ("broken_model:make", "RuntimeError: at import"),
        ("own_models:missing", "own_models has no function missing"),
        ("own_models:not_a_function", "own_models has no function not_a_function"),
        ("own_models:picky", "ValueError: no optimizer adam"),
        ("own_models:wrong", "or .step, example_args, jit_kwargs., not int"),
        ("own_models:uncallable", "is a int, not a function"),
    ],
)
def test_what_cannot_be_built(own, name, message):
    with pytest.raises(InputError, match=message) as error:
        models.build(name, batch_size=1, optimizer="adam")
    assert "\n" not in str(error.value)


def test_tracing_errors_become_one_line():
    with pytest.raises(InputError, match="cannot trace the step of model m: ValueError: bad"):
        with models.tracing("m"):
            raise ValueError("\nbad\nworse")
    with pytest.raises(OllaError, match="^ours$"), models.tracing("m"):
        raise OllaError("ours")


def test_registry():
    assert {"mlp", "resnet50", "vgg11", "efficientnet_b0", "gpt"} <= set(models.zoo().MODELS)


def test_an_installation_has_no_zoo(monkeypatch):
    monkeypatch.setattr(models, "_ZOO", "examples.none")
    with pytest.raises(InputError, match="examples/zoo of a checkout.*package.module:function"):
        models.build("gpt", batch_size=1, optimizer="adam")


@pytest.mark.parametrize("name", ["llama_layers", "gpt_layers", "lstm_steps"])
def test_scanned_steps_are_scanned_forward_and_backward(name):
    model = models.build(f"examples.zoo.scanned_steps:{name}", batch_size=2, optimizer="sgd")
    lowered = jax.jit(model.step, **model.jit_options).lower(*model.arguments)
    assert lowered.as_text().count("stablehlo.while") >= 2

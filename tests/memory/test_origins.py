"""Which files are a step's own, and what a call stack tells."""

import sysconfig

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from hlo.stack_frames import SourceFrame
from olla_xla.memory.sources import is_own_file, source_of

SITE = "/opt/env/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/me/train.py", True),
        (f"{SITE}/flax/linen/module.py", False),
        (f"{SITE}/maxtext/layers/linears.py", True),
        (f"{SITE}/optax/_src/update.py", False),
        (f"{SITE}/optax_like/update.py", True),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("<frozen runpy>", False),
        ("-", False),
        ("/src/jax/jax/_src/lax/lax.py", False),
        (f"{sysconfig.get_paths()['stdlib']}/functools.py", False),
        (f"{sysconfig.get_paths()['scripts']}/olla_xla", False),
        (olla_xla.__file__, False),
    ],
)
def test_files(file, own):
    assert is_own_file(file) is own


def stack(*frames):
    return tuple(SourceFrame(*frame) for frame in frames)


def test_the_line_of_a_framework_and_not_of_what_calls_it():
    calls = stack(
        (f"{SITE}/flax/nnx/nn/linear.py", 9, "Linear.__call__"),
        (f"{SITE}/maxtext/layers.py", 162, "DenseGeneral.__call__"),
        (f"{SITE}/maxtext/layers.py", 40, "Block.__call__"),
        (f"{SITE}/maxtext/train.py", 565, "train_step"),
        ("/home/me/launch.py", 12, "main"),
    )
    found = source_of(calls, "jit(train_step)/jvp()/dot_general")
    assert found is not None and found.is_own
    assert found.line == f"{SITE}/maxtext/layers.py:162" and found.caller == ""
    assert found.layer == "Block/DenseGeneral/Linear"
    assert found.chain[0] == f"{SITE}/maxtext/train.py:565 train_step"
    assert len(found.chain) == 3


def test_the_user_s_line_that_calls_a_framework_is_told_too():
    calls = stack(
        (f"{SITE}/gemma/modules.py", 5, "Attention.__call__"),
        ("/home/me/train.py", 30, "step.<locals>.loss"),
        ("/home/me/train.py", 31, "step"),
        (f"{olla_xla.__path__[0]}/analysis/analyze.py", 100, "_compiled"),
        ("/home/me/train.py", 99, "<module>"),
    )
    found = source_of(calls, "jit(step)/add")
    assert found is not None
    assert (found.line, found.caller) == (f"{SITE}/gemma/modules.py:5", "/home/me/train.py:30")
    assert len(found.chain) == 2
    launched = source_of(calls[3:], "jit(step)/add")
    assert launched is None  # the script that compiles made nothing


def test_a_library_s_line_where_a_step_has_none_of_its_own():
    calls = stack(
        (f"{SITE}/keras/src/layers/core/dense.py", 153, "Dense.call"),
        (f"{SITE}/keras/src/layers/layer.py", 936, "Layer.__call__"),
        (f"{SITE}/keras/src/models/functional.py", 3, "Functional.stateless_call"),
        ("/home/me/train.py", 99, "<module>"),
    )
    found = source_of(calls, "jit(stateless_call)/add")
    assert found is not None and not found.is_own
    assert found.line.endswith("dense.py:153") and found.layer == "Dense"


def test_a_step_of_functions():
    """Lines and layers of a step without modules, in `analyze` and in a plan's tables alike."""

    def attention(x, w):
        return jax.nn.softmax(x @ w) @ x.T @ x

    def block(x, w):
        return attention(x, w) + x, None

    def step(w, x):
        return jax.lax.scan(block, x, w)[0].sum()

    shapes = jnp.ones((4, 64, 64)), jnp.ones((64, 64))
    analysis = olla_xla.analyze(jax.grad(step), *shapes)
    line = attention.__code__.co_firstlineno + 1
    lines = analysis.xla.by_line()
    assert any(found.endswith(f"test_origins.py:{line}") for found in lines), lines
    modules = analysis.xla.by_module()
    assert any(name.endswith("step/block/attention") for name in modules), modules

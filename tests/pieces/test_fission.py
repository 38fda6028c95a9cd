"""`olla_xla.fission`: results and gradients beside the function's own, memory, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import olla_xla
from olla_xla.errors import BudgetError, InputError, LimitError
from tests.support.compiles import QUICK

RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32))


def compiled(function, *args):
    """The function's results, and the bytes that XLA assigns to it."""
    executable = jax.jit(function).lower(*args).compile(compiler_options=QUICK)
    m = executable.memory_analysis()
    sizes = m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes
    return executable(*args), sizes - m.alias_size_in_bytes


def quick(function):
    return jax.jit(function, compiler_options=QUICK)


def total(function, *args):
    return compiled(function, *args)[1]


def loss(w, x, y):
    logits = (x @ w).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def head(dtype=jnp.float32):
    tokens = jnp.asarray(RNG.integers(0, 512, 96))
    return normal(16, 512).astype(dtype), normal(96, 16).astype(dtype), tokens


def close(made, expected, tolerance=2e-6):
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * (np.abs(b).max() + 1e-30))


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_loss_of_narrow_arguments(where):
    """Its casts are cut as well: JAX writes those of the backward pass in another way."""
    args = head(jnp.bfloat16)
    gradient = jax.value_and_grad(loss, (0, 1))
    if where == "inside":
        ours = olla_xla.fission(gradient, pieces=8)
    else:
        ours = jax.value_and_grad(olla_xla.fission(loss, pieces=8), (0, 1))
    (made, cut), (expected, whole) = compiled(ours, *args), compiled(gradient, *args)
    wide = (jax.tree.map(lambda a: a.astype(jnp.float32), f) for f in (made, expected))
    close(*wide, 2**-7)
    assert cut < 0.5 * whole


@pytest.mark.parametrize("pieces", [2, 5, 96])
def test_a_loss_and_its_gradient(pieces):
    args = head()
    gradient = jax.value_and_grad(loss, (0, 1))
    expected, whole = compiled(gradient, *args)
    inside = olla_xla.fission(gradient, pieces=pieces)
    outside = jax.value_and_grad(olla_xla.fission(loss, pieces=pieces), (0, 1))
    for function in (inside, outside):
        made, cut = compiled(function, *args)
        close(made, expected)
        assert cut < 0.7 * whole
    plan = inside.explain(*args)
    assert plan.pieces == {2: 2, 5: 5, 96: 96}[pieces]
    assert plan.regions[0].axis == "dimension 0 of float32[96,512]"
    assert plan.largest_before == 96 * 512 * 4 > plan.largest_after
    assert plan.regions[0].first_line.startswith("test_fission.py:")
    assert f"in {pieces} pieces" in str(plan)
    if pieces < 96:
        assert plan.regions[0].sums == ("float32[]", "float32[16,512]")
        assert plan.regions[0].stacked == ("float32[96,16]",)
        return
    # Where an accumulator as large as the weights is most of what is left: along the tokens for the
    # softmax, then along the vocabulary.
    second = plan.regions[1]
    assert second.axis == "dimension 1 of float32[96,512]"
    assert (second.sums, second.stacked) == (("float32[96,16]",), ("float32[16,512]",))
    assert second.twice
    assert "of which also run before the pieces" in str(plan)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_errors_against_float64(dtype, where):
    """No more than twice jit's own, by the norm of all of the gradient."""
    args = head(dtype)
    gradient = jax.value_and_grad(loss, (0, 1))
    if where == "inside":
        ours = olla_xla.fission(gradient, pieces=12)
    else:
        ours = jax.value_and_grad(olla_xla.fission(loss, pieces=12), (0, 1))
    w, x, y = (
        np.asarray(a).astype(np.float64 if a.dtype != y_type else a.dtype)
        for a, y_type in ((a, args[2].dtype) for a in args)
    )
    logits = x @ w
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(96), y] -= 1
    exact = x.T @ p / 96, p @ w.T / 96

    def error(function):
        made = jax.jit(function)(*args)[1]
        return [
            np.linalg.norm(np.asarray(a, np.float64) - b) for a, b in zip(made, exact, strict=True)
        ]

    for mine, own in zip(error(ours), error(gradient), strict=True):
        assert mine <= 2 * own


@pytest.mark.parametrize("pieces", [16, 256])
def test_two_axes_meet_bytes_and_error_in_bfloat16(pieces):
    """The weights' gradient needs no accumulator where it is made along the vocabulary.

    Of 16 pieces each has more words than a token has features, of 256 fewer.
    """
    rng = np.random.default_rng(1)
    x, w = (jnp.asarray(rng.normal(size=s) / 4, jnp.bfloat16) for s in ((512, 32), (32, 4096)))
    y = jnp.asarray(rng.integers(0, 4096, 512))
    gradient = jax.value_and_grad(loss, (0, 1))
    ours = olla_xla.fission(gradient, pieces=pieces)
    assert [r.axis[:11] for r in ours.explain(w, x, y).regions] == ["dimension 0", "dimension 1"]
    wide = jax.value_and_grad(olla_xla.fission(loss, pieces=pieces), (0, 1))
    (_, made), cut = compiled(ours, w, x, y)
    assert cut < 0.9 * total(wide, w, x, y)
    exact = jax.jit(gradient)(*(a.astype(jnp.float32) for a in (w, x)), y)[1]

    def errors(made):
        return [jnp.linalg.norm(a - b) for a, b in zip(made, exact, strict=True)]

    for mine, own in zip(errors(made), errors(jax.jit(gradient)(w, x, y)[1]), strict=True):
        assert mine <= 2 * own


def test_several_regions():
    """A head and an attention over a long context, neither of whose axes goes through the other."""
    w, head = [normal(16, 16) * 0.3 for _ in range(3)], normal(16, 2048) * 0.3

    def both(w, head, x):
        x = attention(w, x)
        x = jnp.cumsum(x, 0) / 64  # what mixes tokens lies between them
        return jnp.mean(jax.nn.logsumexp(x @ head, -1))

    args = w, head, normal(512, 16)
    gradient = jax.value_and_grad(both, (0, 1))
    ours = olla_xla.fission(gradient, pieces=16)
    assert len(ours.explain(*args).regions) >= 2
    (made, cut), (expected, bytes_) = compiled(ours, *args), compiled(gradient, *args)
    close(made, expected, 1e-4)
    assert cut < 0.4 * bytes_


def test_a_function_with_a_part_in_pieces_is_cut_again():
    w, vocabulary = [normal(16, 16) * 0.3 for _ in range(3)], normal(16, 4096) * 0.3

    def tail(vocabulary, x):
        return jnp.mean(jax.nn.logsumexp(x @ vocabulary, -1))

    def whole(w, vocabulary, x, tail):
        return tail(vocabulary, jnp.cumsum(attention(w, x), 0) / 64)

    args = w, vocabulary, normal(512, 16)

    def gradient(tail):
        return jax.value_and_grad(lambda *args: whole(*args, tail), (0, 1))

    once = gradient(olla_xla.fission(tail, pieces=16))
    twice = olla_xla.fission(once, pieces=16)
    (made, least), (expected, most) = compiled(twice, *args), compiled(gradient(tail), *args)
    close(made, expected, 1e-4)
    assert least < 0.5 * total(once, *args) < 0.5 * most


def test_what_is_not_summed_is_bit_equal():
    x = normal(64, 256)

    def elementwise(x):
        return jnp.sqrt(jnp.abs(jnp.outer(x[:, 0], x[0]))).max(1)

    made = jax.jit(olla_xla.fission(elementwise, pieces=8))(x)
    np.testing.assert_array_equal(made, jax.jit(elementwise)(x))


def clipped(w, x, y):
    def one(w, x, y):
        hidden = jax.nn.relu(x @ w[0])
        return ((jax.nn.gelu(hidden @ w[1])).sum() - y) ** 2

    gradients = jax.vmap(jax.grad(one), (None, 0, 0))(w, x, y)
    norms = jnp.sqrt(sum(jnp.sum(g**2, (1, 2)) for g in gradients))
    return [jnp.tensordot(jnp.minimum(1.0, 1 / norms), g, 1) for g in gradients]


def patches(w, image):
    def at(row, column):
        patch = lax.dynamic_slice(image, (row, column), (8, 8)).reshape(-1)
        return jnp.tanh(jnp.tanh(patch @ w[0]) @ w[1])

    places = jnp.arange(0, 40, 2)
    return jax.vmap(lambda r: jax.vmap(lambda c: at(r, c))(places))(places)


def attention(w, x):
    q, k, v = ((x @ m).reshape(len(x), 2, -1) for m in w)
    scores = jnp.einsum("qhd,khd->hqk", q, k)
    causal = jnp.tril(jnp.ones((len(x), len(x)), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return jnp.einsum("hqk,khd->qhd", weights, v).reshape(x.shape)


def mixer(w, x):
    for across, along in w:
        y = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = x + jnp.swapaxes(jax.nn.gelu(jnp.swapaxes(y, 1, 2) @ across) @ across.T, 1, 2)
        x = x + jax.nn.gelu(x @ along) @ along.T
    return x


def language_model(p, tokens):
    def layer(x, w):
        return x + jax.nn.silu(x @ w) @ w.T, None

    x, _ = lax.scan(jax.checkpoint(layer), p["table"][tokens], p["layers"])
    logits = (x @ p["table"].T)[:, :-1]
    picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def convolutions(w, x):
    for kernel in w:  # a smooth function of it, for which half a rounding is no other gradient
        x = jax.nn.silu(lax.conv_general_dilated(x, kernel, (1, 1), "SAME"))
    return (x.mean((2, 3)) ** 2).mean()


def masked(w, x, y):
    logits = x @ w
    each = jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
    kept = y != 0
    return jnp.sum(each * kept) / jnp.sum(kept)


def squares(function):
    return lambda w, x: (function(w, x) ** 2).mean()


def sgd(p, tokens):
    value, gradient = jax.value_and_grad(language_model)(p, tokens)
    return value, jax.tree.map(lambda a, g: a - 0.1 * g, p, gradient)


WEIGHTS = [normal(32, 32) * 0.2 for _ in range(3)]
MIXER = [(normal(16, 64) * 0.1, normal(24, 96) * 0.1) for _ in range(2)]
MODEL = {"table": normal(300, 16) * 0.3, "layers": normal(3, 16, 64) * 0.2}
TOKENS = jnp.asarray(RNG.integers(0, 300, (8, 24)))

# Name -> function, arguments, the part of the total that is left at most.
PROGRAMS = {
    "per-sample gradients": (
        clipped,
        ([normal(32, 64), normal(64, 48)], normal(64, 32), normal(64)),
        0.2,
    ),
    "patches": (patches, ([normal(64, 128) * 0.1, normal(128, 1)], normal(64, 64)), 0.5),
    "patches' gradient": (
        jax.grad(squares(patches)),
        ([normal(64, 128) * 0.1, normal(128, 1)], normal(64, 64)),
        0.5,
    ),
    "attention": (attention, (WEIGHTS, normal(256, 32)), 0.4),
    "attention's gradient": (
        jax.value_and_grad(squares(attention), (0, 1)),
        (WEIGHTS, normal(256, 32)),
        0.4,
    ),
    "mixer": (jax.grad(squares(mixer)), (MIXER, normal(32, 16, 24)), 0.4),
    "convolutions": (
        jax.value_and_grad(convolutions),
        ([normal(8, 3, 3, 3) * 0.2, normal(8, 8, 3, 3) * 0.1], normal(16, 3, 16, 16)),
        0.4,
    ),
    "masked loss": (jax.value_and_grad(masked, (0, 1)), head(), 0.5),
    "training step": (sgd, (MODEL, TOKENS), 0.5),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    function, args, left = PROGRAMS[name]
    (made, cut), (expected, whole) = (
        compiled(f, *args) for f in (olla_xla.fission(function), function)
    )
    close(made, expected, 1e-5)
    assert cut <= left * whole


LOSSES = {
    "patches": (squares(patches), PROGRAMS["patches"][1]),
    "attention": (squares(attention), PROGRAMS["attention"][1]),
    "convolutions": (convolutions, PROGRAMS["convolutions"][1]),
    "language model": (language_model, (MODEL, TOKENS)),
    "nested": (jax.jit(jax.jit(squares(mixer))), PROGRAMS["mixer"][1]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_differentiated_later(name):
    function, args = LOSSES[name]
    (made, cut), (expected, whole) = (
        compiled(jax.value_and_grad(f), *args) for f in (olla_xla.fission(function), function)
    )
    close(made, expected, 1e-5)
    assert cut < whole


def test_forward_mode_and_second_derivatives():
    w, x = normal(8, 64) * 0.3, normal(24, 8)

    def f(x):
        return jnp.sum(jax.nn.relu(jnp.tanh(x @ w)) ** 2)

    ours = olla_xla.fission(f, axis=0, pieces=4)
    close(jax.jvp(ours, (x,), (x,)), quick(lambda x: jax.jvp(f, (x,), (x,)))(x), 1e-5)

    def product(function):
        return quick(jax.grad(lambda x: jnp.vdot(jax.grad(function)(x), jnp.cos(x))))(x)

    close(product(ours), product(f), 1e-5)
    batch = jnp.stack([x, 2 * x])
    close(quick(jax.vmap(ours))(batch), quick(jax.vmap(f))(batch), 1e-5)


@pytest.mark.parametrize("pieces", [4, 5])
def test_what_is_cut_along_columns(pieces):
    """Slices are taken and results put where they lie, whichever way that is differentiated."""
    w, x = normal(8, 64) * 0.3, normal(24, 8)

    def f(w):
        made = jnp.tanh(x @ w)
        return jnp.sum(made**2), made

    ours = olla_xla.fission(f, axis=1, pieces=pieces)
    (region,) = ours.explain(w).regions
    assert region.axis.startswith("dimension 1")
    results = quick(lambda w: jax.jvp(f, (w,), (w,)))(w)
    close(quick(ours)(w), results[0], 1e-5)
    close(quick(lambda w: jax.jvp(ours, (w,), (w,)))(w), results, 1e-5)

    def differentiated(function):
        def scalar(w):
            total, made = function(w)
            return total + jnp.vdot(made, jnp.cos(made))

        return jax.grad(lambda w: jnp.vdot(jax.grad(scalar)(w), jnp.sin(w)))

    expected = quick(differentiated(f))(w)
    close(quick(differentiated(ours))(w), expected, 1e-5)
    close(quick(differentiated(jax.jit(ours)))(w), expected, 1e-5)
    if pieces == 4:  # operation by operation
        close(differentiated(ours)(w), expected, 1e-5)


def test_columns_of_weights_are_not_copied():
    """The softmax's weights are cut along the vocabulary, their second dimension, on a CPU too."""
    w, x, y = normal(256, 8192), normal(512, 256), jnp.asarray(RNG.integers(0, 8192, 512))
    ours = olla_xla.fission(jax.value_and_grad(loss, (0, 1)), pieces=16)
    assert ours.explain(w, x, y).regions[1].axis.startswith("dimension 1")
    temporaries = jax.jit(ours).lower(w, x, y).compile().memory_analysis().temp_size_in_bytes
    assert temporaries < 0.6 * w.nbytes


def test_sums_of_narrow_types_are_accumulated_in_float32():
    x, v, w = (jnp.full(s, 1, jnp.bfloat16) for s in ((4096, 8), (4096,), (8, 64)))

    def f(v, x, w):
        return v @ jnp.minimum(x @ w, 1)

    axis = (0, 0, None)
    ours = olla_xla.fission(f, pieces=1024, axis=axis)
    assert (jax.jit(ours)(v, x, w) == 4096).all()
    narrow = olla_xla.fission(f, pieces=1024, axis=axis, accumulate_dtype=jnp.bfloat16)
    assert (jax.jit(narrow)(v, x, w) < 2048).all()
    # The gradient of what every piece reads whole is such a sum, too.
    gradient = jax.grad(lambda w: (olla_xla.fission(f, pieces=1024, axis=axis)(v, x, w)).sum())
    expected = jax.grad(lambda w: f(v, x, w).sum())(w / 16)
    close(jax.jit(gradient)(w / 16), expected, 2**-7)


def test_refusals_name_the_operation_and_the_line():
    w = normal(16, 256)

    def sorted_tokens(x):
        return jnp.tanh(jnp.cumsum(x @ w, 0)).sum(1)

    with pytest.raises(InputError, match=r"cumsum at test_fission\.py:\d+ mixes dimension 0 of"):
        olla_xla.fission(sorted_tokens, axis=0)(normal(64, 16))
    # Another axis is found where one is looked for.
    plan = olla_xla.fission(sorted_tokens).explain(normal(64, 16))
    assert plan.regions[0].axis == "dimension 1 of float32[64,256]"
    with pytest.raises(
        InputError,
        match=r"small cannot be cut into pieces: no cut lowers the peak of \d+ bytes; no inter",
    ):

        def small(x):
            return x + 1

        olla_xla.fission(small)(normal(64))


def test_batch_norm_is_cut_along_features_or_refused():
    w = normal(16, 256)

    def normed(x):
        h = x @ w
        return jnp.tanh((h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5)).sum(0)

    x = normal(128, 16)
    ours = olla_xla.fission(normed)
    assert ours.explain(x).regions[0].axis.startswith("dimension 1")
    close(jax.jit(ours)(x), jax.jit(normed)(x), 1e-5)

    def network(x):
        for _ in range(3):
            h = normed_rows(x @ w)
            x = jnp.tanh(h) @ w.T
        return (x**2).mean()

    def normed_rows(h):
        return (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5)

    with pytest.raises(InputError, match=r"reduce_sum at test_fission\.py:\d+ combines the axis"):
        olla_xla.fission(jax.value_and_grad(network), axis=0)(x)


def test_arguments():
    def f(x):
        return jnp.tanh(jnp.outer(x, x) @ jnp.ones((64, 64))).sum()

    for wrong, message in [
        ({"pieces": 1.5}, "not an integer"),
        ({"pieces": True}, "not an integer"),
        ({"axis": "batch"}, "give an integer"),
        ({"axis": (None,)}, "cuts no argument"),
        ({"accumulate_dtype": jnp.int32}, "not a floating-point type"),
        ({"accumulate_dtype": "wide"}, "not a floating-point type"),
        ({"pieces": 4, "memory_budget": 1000}, "which sets the number of pieces"),
    ]:
        with pytest.raises(InputError, match=message):
            olla_xla.fission(f, **wrong)
    with pytest.raises(InputError, match="takes a function"):
        olla_xla.fission(3)
    for wrong in ({"pieces": 1}, {"memory_budget": 0}):
        with pytest.raises(LimitError, match="at least"):
            olla_xla.fission(f, **wrong)
    x = normal(64)
    with pytest.raises(LimitError, match="at most 64 pieces"):
        olla_xla.fission(f, pieces=65)(x)
    with pytest.raises(InputError, match="is for 2 arguments"):
        olla_xla.fission(f, axis=(0, 0))(x)
    with pytest.raises(InputError, match="axis 1 does not exist in"):
        olla_xla.fission(f, axis=1)(x)
    with pytest.raises(InputError, match="different sizes"):
        olla_xla.fission(lambda x, y: jnp.tanh(jnp.outer(x, y)).sum(), axis=0)(x, normal(32))


def test_the_fewest_pieces_for_a_budget():
    args = head()
    in_four = total(olla_xla.fission(loss, pieces=4), *args)
    ours = olla_xla.fission(loss, memory_budget=in_four)
    assert ours.explain(*args).pieces == 4
    with pytest.raises(BudgetError, match="the least that was reached"):
        olla_xla.fission(lambda x: jnp.tanh(x @ x.T).sum(1), memory_budget=10)(normal(4, 3))


def test_a_backend_that_reports_no_memory_needs_pieces(monkeypatch):
    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda compiled: None)
    with pytest.raises(InputError, match="does not report .*; give pieces= in place of memory_b"):
        olla_xla.fission(loss, memory_budget=2**20)(*head())


def test_flags_and_keywords():
    def f(x, *, power, flag):
        assert flag is True
        return jnp.sum(jnp.tanh(x @ x.T) ** power)

    x = normal(64, 4)
    close(olla_xla.fission(f)(x, power=2, flag=True), f(x, power=2, flag=True))

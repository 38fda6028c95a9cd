"""Small train steps as users of other libraries write them, to measure what planning costs.

Each function is a model that benchmarks can name. The libraries are not dependencies of this
package; `uv run --group libraries` installs them.
"""

# The libraries are not installed where types are checked.
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.schedule import Case
from olla_xla.errors import InputError

Built = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def made_optimizer(name: str) -> Any:
    """Optax's optimizer of that name. Raises InputError."""
    import optax

    if name not in ("sgd", "adam", "adamw"):
        raise InputError(f"optimizer {name!r} is not known here; use sgd, adam or adamw")
    return getattr(optax, name)(1e-3)


def trained(
    optimizer: str, loss: Callable[..., Any], params: Any, *batch: Any, shapes: bool = False
) -> Built:
    """A train step on `loss(params, *batch)`: parameters, state and the loss before the step.

    Args:
      optimizer: as of `made_optimizer`. params, batch: the first arguments.
      shapes: whether they are `jax.ShapeDtypeStruct`s.
    """
    rule = made_optimizer(optimizer)

    def step(params: Any, state: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return *applied(rule, grads, state, params), value

    state = jax.eval_shape(rule.init, params) if shapes else rule.init(params)
    return step, (params, state, *batch), {"donate_argnums": (0, 1)}


def applied(rule: Any, grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
    """Parameters and the optimizer's state after an update."""
    import optax

    updates, state = rule.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def diffrax_ode(*, batch_size: int, optimizer: str) -> Built:
    """A neural ODE fitted to trajectories (diffrax, equinox): an adaptive solver in a loop."""
    import diffrax
    import equinox as eqx

    class Field(eqx.Module):
        net: Any

        def __call__(self, t: Any, y: Any, args: Any) -> Any:
            return self.net(y)

    net = eqx.nn.MLP(2, 2, width_size=64, depth=2, activation=jnp.tanh, key=jax.random.key(0))
    params, rest = eqx.partition(Field(net), eqx.is_inexact_array)
    times = jnp.linspace(0.0, 1.0, 16)

    def loss(params: Any, start: Any, wanted: Any) -> Any:
        field = eqx.combine(params, rest)

        def solve(y: Any) -> Any:
            found = diffrax.diffeqsolve(
                diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, 1.0, 0.1, y,
                saveat=diffrax.SaveAt(ts=times),
                stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
            )  # fmt: skip
            return found.ys

        return ((jax.vmap(solve)(start) - wanted) ** 2).mean()

    start, wanted = jnp.ones((batch_size, 2)), jnp.zeros((batch_size, 16, 2))
    return trained(optimizer, loss, params, start, wanted)


def equinox_mlp(*, batch_size: int, optimizer: str) -> Built:
    """A classifier (equinox)."""
    import equinox as eqx
    import optax

    net = eqx.nn.MLP(784, 10, width_size=512, depth=3, key=jax.random.key(0))
    params, rest = eqx.partition(net, eqx.is_inexact_array)

    def loss(params: Any, x: Any, y: Any) -> Any:
        scores = jax.vmap(eqx.combine(params, rest))(x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    batch = (jnp.zeros((batch_size, 784)), jnp.zeros((batch_size,), jnp.int32))
    return trained(optimizer, loss, params, *batch)


def haiku_lstm(*, batch_size: int, optimizer: str) -> Built:
    """A character model, an LSTM scanned over time (haiku)."""
    import haiku as hk
    import optax

    def forward(text: Any) -> Any:
        core = hk.LSTM(256)
        inputs = hk.Embed(128, 64)(text)
        states, _ = hk.dynamic_unroll(core, inputs, core.initial_state(text.shape[1]))
        return hk.BatchApply(hk.Linear(128))(states)

    net = hk.without_apply_rng(hk.transform(forward))
    text = jnp.zeros((64, batch_size), jnp.int32)
    params = net.init(jax.random.key(0), text)

    def loss(params: Any, text: Any) -> Any:
        scores = net.apply(params, text)[:-1]
        return optax.softmax_cross_entropy_with_integer_labels(scores, text[1:]).mean()

    return trained(optimizer, loss, params, text)


def jraph_network(*, batch_size: int, optimizer: str) -> Built:
    """Messages between the nodes of random graphs (jraph), three rounds of them."""
    import jraph

    random = np.random.default_rng(0)
    nodes, edges, width = 32 * batch_size, 128 * batch_size, 64
    graph = jraph.GraphsTuple(
        nodes=jnp.asarray(random.standard_normal((nodes, width)), jnp.float32),
        edges=jnp.asarray(random.standard_normal((edges, width)), jnp.float32),
        senders=jnp.asarray(random.integers(0, nodes, edges)),
        receivers=jnp.asarray(random.integers(0, nodes, edges)),
        n_node=jnp.full(batch_size, 32),
        n_edge=jnp.full(batch_size, 128),
        globals=None,
    )
    scale = width**-0.5
    params = [
        {
            "edge": jnp.asarray(random.standard_normal((3 * width, width)) * scale, jnp.float32),
            "node": jnp.asarray(random.standard_normal((2 * width, width)) * scale, jnp.float32),
        }
        for _ in range(3)
    ]

    def loss(params: Any, graph: Any) -> Any:
        for layer in params:
            network = jraph.InteractionNetwork(
                lambda *v, w=layer["edge"]: jax.nn.relu(jnp.concatenate(v[:3], -1) @ w),
                lambda *v, w=layer["node"]: jax.nn.relu(jnp.concatenate(v[:2], -1) @ w),
            )
            graph = network(graph)
        return (graph.nodes**2).mean()

    return trained(optimizer, loss, params, graph)


def numpyro_svi(*, batch_size: int, optimizer: str) -> Built:
    """Variational inference of a regression (numpyro)."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    def model(x: Any, y: Any) -> None:
        weights = numpyro.sample("w", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
        spread = numpyro.sample("s", dist.Exponential(1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ weights, spread), obs=y)

    inference = SVI(model, AutoNormal(model), made_optimizer(optimizer), Trace_ELBO())
    x, y = jnp.ones((256 * batch_size, 32)), jnp.ones(256 * batch_size)
    state = inference.init(jax.random.key(0), x, y)
    return inference.update, (state, x, y), {"donate_argnums": 0}


def blackjax_nuts(*, batch_size: int, optimizer: str) -> Built:
    """A draw from the posterior of a regression by each of some chains (blackjax)."""
    import blackjax

    made_optimizer(optimizer)  # a sampler has none, but a wrong name is an error
    x, y = jnp.ones((512, 16)), jnp.ones(512)

    def log_density(weights: Any) -> Any:
        return -((x @ weights - y) ** 2).sum() - (weights**2).sum()

    sampler = blackjax.nuts(log_density, 1e-2, jnp.ones(16))

    def step(keys: Any, states: Any) -> Any:
        return jax.vmap(sampler.step)(keys, states)

    states = jax.vmap(lambda start: sampler.init(start, None))(jnp.zeros((batch_size, 16)))
    return step, (jax.random.split(jax.random.key(0), batch_size), states), {"donate_argnums": 1}


def linen_attention(*, batch_size: int, optimizer: str) -> Built:
    """Two layers of attention over short sequences (flax.linen)."""
    import flax.linen as nn

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(2):
                x = x + nn.SelfAttention(num_heads=4)(nn.LayerNorm()(x))
                x = x + nn.Dense(64)(nn.gelu(nn.Dense(256)(nn.LayerNorm()(x))))
            return nn.Dense(1)(x)[..., 0]

    net = Encoder()
    x = jnp.zeros((batch_size, 32, 64))
    params = net.init(jax.random.key(0), x)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return ((net.apply(params, x) - y) ** 2).mean()

    return trained(optimizer, loss, params, x, jnp.zeros((batch_size, 32)))


def nnx_convolutions(*, batch_size: int, optimizer: str) -> Built:
    """A small image classifier with batch statistics (flax.nnx)."""
    import optax
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Conv(3, 16, (3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(16, rngs=rngs)
            self.second = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
            self.out = nnx.Linear(32, 10, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = nnx.relu(self.norm(self.first(x)))
            return self.out(nnx.relu(self.second(x)).mean((1, 2)))

    graph, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)

    def loss(params: Any, rest: Any, x: Any, y: Any) -> Any:
        net = nnx.merge(graph, params, rest, copy=True)
        value = optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()
        return value, nnx.split(net, nnx.Param, ...)[2]

    rule = made_optimizer(optimizer)

    def step(params: Any, state: Any, rest: Any, x: Any, y: Any) -> Any:
        (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(params, rest, x, y)
        return *applied(rule, grads, state, params), rest, value

    batch = (jnp.zeros((batch_size, 32, 32, 3)), jnp.zeros((batch_size,), jnp.int32))
    return step, (params, rule.init(params), rest, *batch), {"donate_argnums": (0, 1, 2)}


def optimistix_fit(*, batch_size: int, optimizer: str) -> Built:
    """Learns the weights of residuals through a least-squares solver (optimistix)."""
    import optimistix

    solver = optimistix.LevenbergMarquardt(rtol=1e-4, atol=1e-4)
    times = jnp.linspace(0.0, 1.0, 64)

    def fitted(weights: Any, seen: Any) -> Any:
        def residuals(rates: Any, _: Any) -> Any:
            return weights * (jnp.exp(-times[:, None] * rates).sum(1) - seen)

        return optimistix.least_squares(
            residuals, solver, jnp.array([0.5, 2.0]), max_steps=32, throw=False
        ).value

    def loss(weights: Any, seen: Any, wanted: Any) -> Any:
        return ((jax.vmap(fitted, (None, 0))(weights, seen) - wanted) ** 2).mean()

    seen, wanted = jnp.ones((batch_size, 64)), jnp.ones((batch_size, 2))
    return trained(optimizer, loss, jnp.ones(64), seen, wanted)


def tinygp_fit(*, batch_size: int, optimizer: str) -> Built:
    """Kernel parameters by the marginal likelihood of a Gaussian process (tinygp)."""
    import tinygp

    def loss(params: Any, x: Any, y: Any) -> Any:
        kernel = jnp.exp(params["amplitude"]) * tinygp.kernels.Matern32(jnp.exp(params["scale"]))
        process = tinygp.GaussianProcess(kernel, x, diag=jnp.exp(params["noise"]))
        return -process.log_probability(y)

    params = {name: jnp.zeros(()) for name in ("amplitude", "noise", "scale")}
    x = jnp.linspace(0.0, 1.0, 16 * batch_size)
    return trained(optimizer, loss, params, x, jnp.sin(x))


CASES = tuple(
    Case(f"{__name__}:{name}", batch_size, "adam", "cpu")
    for name in (
        "blackjax_nuts",
        "diffrax_ode",
        "equinox_mlp",
        "haiku_lstm",
        "jraph_network",
        "linen_attention",
        "nnx_convolutions",
        "numpyro_svi",
        "optimistix_fit",
        "tinygp_fit",
    )
    for batch_size in (8, 64)
)
"""What `benchmarks first_call --libraries` times."""

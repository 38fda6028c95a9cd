"""Scans of many turns whose state a gradient needs: what checkpoints by hand are written for."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from tests.support.drawn import normal

BATCH, WIDTH, HIDDEN = 8, 4, 16

PROGRAMS = {}
"""Name -> what gives a step of so many turns, and its arguments."""

NOT_ON_A_CPU = ("lorenz", "noisy")
"""Loops that stay as they are there: what XLA makes one function of, where what is added could
change rounding; and a turn that runs loops itself."""

_array = functools.partial(normal, scale=1 / 4)


def _program(make):
    """Adds a program: a loss of parameters, what a scan begins with, and its number of turns."""

    @functools.wraps(make)
    def built(turns):
        loss, *arguments = make(turns)
        step = jax.value_and_grad(loss, argnums=tuple(range(min(len(arguments), 2))))
        return step, tuple(arguments)

    PROGRAMS[make.__name__] = built
    return make


def field(p, y):
    """A small neural vector field."""
    return jnp.tanh(y @ p["a"] + p["b"]) @ p["c"]


def runge_kutta(f, y, h=0.02):
    """One step of the classical method of order four."""
    k1 = f(y)
    k2 = f(y + h / 2 * k1)
    k3 = f(y + h / 2 * k2)
    k4 = f(y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def parameters():
    return {"a": _array(WIDTH, HIDDEN), "b": jnp.zeros(HIDDEN), "c": _array(HIDDEN, WIDTH, seed=1)}


def _over(body, state, xs=None, length=None, **options):
    return lax.scan(body, state, xs, length=length, **options)


@_program
def neural_ode(turns):
    def loss(p, y):
        step = functools.partial(runge_kutta, functools.partial(field, p))
        return (_over(lambda y, _: (step(y), None), y, length=turns)[0] ** 2).mean()

    return loss, parameters(), _array(BATCH, WIDTH, seed=2)


@_program
def wide_ode(turns):
    """So much is computed in a turn that what comes of it is worth keeping for some turns."""

    def loss(p, y):
        step = functools.partial(runge_kutta, functools.partial(field, p))
        return (_over(lambda y, _: (step(y), None), y, length=turns)[0] ** 2).mean()

    p = {"a": _array(WIDTH, 256), "b": jnp.zeros(256), "c": _array(256, WIDTH, seed=1)}
    return loss, p, _array(64, WIDTH, seed=2)


@_program
def saved_steps(turns):
    """Only what turns begin with is kept: each has a checkpoint by hand."""

    def loss(p, y):
        step = jax.checkpoint(lambda y, _: (runge_kutta(functools.partial(field, p), y), None))
        return (_over(step, y, length=turns)[0] ** 2).mean()

    return loss, parameters(), _array(BATCH, WIDTH, seed=2)


def nested(turns):
    """The same with checkpoints by hand: of every k-th state, and of each in between."""
    every = max(k for k in range(1, math.isqrt(turns) + 1) if turns % k == 0)

    def loss(p, y):
        f = functools.partial(field, p)

        @jax.checkpoint
        def segment(y, _):
            step = jax.checkpoint(lambda y, _: (runge_kutta(f, y), None))
            return _over(step, y, length=turns // every)

        return (_over(segment, y, length=every)[0] ** 2).mean()

    return jax.value_and_grad(loss, argnums=(0, 1)), (parameters(), _array(BATCH, WIDTH, seed=2))


@_program
def lorenz(turns):
    def loss(p, y):
        def f(y):
            u, v, w = y
            return jnp.stack([p[0] * (v - u), u * (p[1] - w) - v, u * v - p[2] * w])

        end, _ = _over(lambda y, _: (runge_kutta(f, y, 0.002), None), y, length=turns)
        return jnp.tanh(end).mean()

    return loss, jnp.array([10.0, 28.0, 8 / 3]), _array(3, 64, 33, seed=3)


@_program
def driven(turns):
    """What drives it is scanned over, and the number of the turn is computed with."""

    def loss(p, y, xs):
        def body(y, x):
            u, n = x
            y = jnp.tanh(y @ p["a"] + u) @ p["c"] * jnp.cos(0.1 * n)
            return y, y.sum()

        y, sums = _over(body, y, (xs, jnp.arange(turns, dtype=jnp.float32)))
        return (y**2).sum() + (sums**2).mean()

    return loss, parameters(), _array(BATCH, WIDTH, seed=2), _array(turns, BATCH, HIDDEN, seed=4)


@_program
def backwards(turns):
    def loss(p, y, xs):
        body = lambda y, x: (jnp.sin(y @ p["a"] @ p["c"] + x), None)  # noqa: E731
        return (_over(body, y, xs, reverse=True)[0] ** 2).sum()

    return loss, parameters(), _array(BATCH, WIDTH, seed=2), _array(turns, BATCH, WIDTH, seed=4)


@_program
def counted(turns):
    """The state has an integer, which says what is done."""

    def loss(p, y, n):
        def body(c, _):
            y, n = c
            z = jnp.tanh(y @ p["a"]) @ p["c"]
            return (jnp.where(n % 3 == 0, jnp.sin(z), z * n), (n * 5 + 3) % 11), None

        (y, n), _ = _over(body, (y, n), length=turns)
        return (y**2).sum() * n

    return loss, parameters(), _array(BATCH, WIDTH, seed=2), jnp.int32(4)


@_program
def leapfrog(turns):
    """Of position and velocity the gradient needs but one, and that comes of both."""

    def loss(p, y, v):
        def body(c, _):
            y, v = c
            v = v - 0.1 * field(p, y)
            return (y + 0.1 * v, v * 0.99), None

        (y, v), _ = _over(body, (y, v), length=turns)
        return (y**2).sum() + (v * y).sum()

    return loss, parameters(), _array(BATCH, WIDTH, seed=2), _array(BATCH, WIDTH, seed=6)


@_program
def exchanged(turns):
    def loss(p, y, v):
        def body(c, _):
            y, v, w = c
            return (v, jnp.tanh(w @ p["a"]) @ p["c"] + y, y * v), None

        return sum((c**2).sum() for c in _over(body, (y, v, y + v), length=turns)[0])

    return loss, parameters(), _array(BATCH, WIDTH, seed=2), _array(BATCH, WIDTH, seed=6)


@_program
def two_layers(turns):
    """One scan over what another one gives: gradients go back through both, turn by turn."""

    def loss(p, y, xs):
        def body(y, x):
            y = jnp.tanh(y @ p["a"] @ p["c"] + x)
            return y, y * 2

        y, ys = _over(body, y, xs)
        z, zs = _over(body, y + 1, ys)
        return (z**2).sum() + (zs**2).mean()

    return loss, parameters(), _array(BATCH, WIDTH, seed=2), _array(turns, BATCH, WIDTH, seed=4)


@_program
def noisy(turns):
    """A random key in the state."""

    def loss(p, y, key):
        def body(c, _):
            y, key = c
            key, now = jax.random.split(key)
            noise = jax.random.normal(now, y.shape)
            return (jnp.tanh(y @ p["a"]) @ p["c"] + 0.1 * noise, key), None

        return (_over(body, (y, key), length=turns)[0][0] ** 2).sum()

    return loss, parameters(), _array(BATCH, WIDTH, seed=2), jax.random.PRNGKey(0)

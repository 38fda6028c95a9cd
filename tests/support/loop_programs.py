"""Small programs whose loops hold what layers seldom do: branches, integers, loops, updates."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from tests.support.drawn import normal

TURNS, WIDTH, ROWS = 9, 32, 48

PROGRAMS = {}
"""Name -> what gives a step and its arguments."""


_array = functools.partial(normal, scale=1 / 4)


def _program(make):
    """Adds a program: a loss of an array, a batch and more, and its gradient in the first two."""

    @functools.wraps(make)
    def built():
        loss, *more = make()
        step = jax.value_and_grad(loss, argnums=(0, 1))
        return step, (_array(WIDTH, WIDTH), _array(ROWS, WIDTH, seed=1), *more)

    PROGRAMS[make.__name__] = built
    return make


def _plain(make):
    """Adds a program that is run as it is."""

    @functools.wraps(make)
    def built():
        step, *more = make()
        return step, (_array(WIDTH, WIDTH), _array(ROWS, WIDTH, seed=1), *more)

    PROGRAMS[make.__name__] = built
    return make


def _over(body, y, turns=TURNS):
    return lax.scan(lambda y, t: (body(y, t), None), y, jnp.arange(turns))[0]


# Transforms.


@_program
def transforms():
    def loss(a, y):
        def step(y, t):
            f = jnp.fft.rfft(jnp.tanh(y @ a))
            return jnp.fft.irfft(f * 0.9, n=WIDTH) * jnp.fft.irfft(f * 1j, n=WIDTH) + y

        return (_over(step, y) ** 2).sum()

    return (loss,)


# Branches.


@_program
def cond():
    def loss(a, y, n):
        def step(y, t):
            return lax.cond(t < n, lambda y: jnp.tanh(y @ a), lambda y: y, y)

        return (_over(step, y) ** 2).sum()

    return loss, 4


@_program
def cond_of_a_constant():
    def loss(a, y):
        def step(y, t):
            return lax.cond(t < 4, lambda y: jnp.tanh(y @ a), lambda y: y, y)

        return (_over(step, y) ** 2).sum()

    return (loss,)


@_program
def switch_on_several_arguments():
    def loss(a, y, n, m):
        branches = [lambda y: y, jnp.sin, lambda y: jnp.tanh(y @ a)]

        def body(y, t):
            k = jnp.where(t < n, 1, jnp.where(t == m, 2, 0))
            return lax.switch(k, branches, y) * (n - m).astype(jnp.float32)

        return (_over(body, y) ** 2).sum()

    return loss, jnp.int32(2), jnp.int32(5)


@_program
def nested_conds_of_several_results():
    def loss(a, y, n):
        def body(c, t):
            y, z = c

            def inner(y, z):
                return lax.cond(z[0, 0] > 0, lambda: (jnp.tanh(y @ a), z), lambda: (z, jnp.cos(y)))

            return lax.cond(t % n == 0, inner, lambda y, z: (z + y, jnp.sin(y)), y, z)

        y, z = _over(body, (y, y * 2))
        return (y * z).sum()

    return loss, 2


@_program
def switch_on_the_carry():
    def loss(a, y):
        def deep(y, z):
            return jnp.tanh(jnp.sin(y @ a) @ a) + z, z * 2

        def inner(y, z):
            return lax.cond(y[0, 0] > 0, deep, lambda y, z: (z, jnp.cos(y) * z), y, z)

        def body(c, _):
            y, z, k = c
            y, z = lax.switch(k, (deep, inner, lambda y, z: (jnp.cos(y * z), z)), y, z)
            return y, z, (k + (y.sum() > 0) + 1) % 3

        y, z, _ = _over(body, (y, y * 2, 1))
        return (y * z).sum()

    return (loss,)


@_program
def cond_in_a_checkpoint():
    def loss(a, y, n):
        def body(y, t):
            return lax.cond(t < n, lambda y: jnp.tanh(jnp.tanh(y @ a) @ a), jnp.sin, y)

        return (_over(jax.checkpoint(body), y) ** 2).sum()

    return loss, 3


# Integers.


@_program
def counted_optimizer():
    def loss(a, y, most):
        def body(c, _):
            w, m, n = c
            g = jax.grad(lambda w: (jnp.tanh(y @ w) ** 2).mean())(w)
            n = jnp.where(n < most, n + 1, most)
            m = 0.9 * m + 0.1 * g
            return w - 0.1 * m / (1 - 0.9 ** n.astype(jnp.float32)), m, n

        w, _, _ = _over(body, (a, a * 0, jnp.int32(0)))
        return (w**2).sum()

    return loss, 4


@_program
def integers_of_two_types():
    def loss(a, y, i, j):
        def body(c, _):
            y, i, j = c
            z = jnp.tanh(y @ a)
            up = z[0, 0] > 0
            scale = jnp.sin((i + 7).astype(jnp.float32)) * jnp.cos((j + 7).astype(jnp.float32))
            return z * scale, jnp.where(up, i + 7, i * 5), jnp.where(up, j + 7, j * 5)

        return (_over(body, (y, i, j))[0] ** 2).sum()

    return loss, jnp.int32(2), jnp.int16(5)


@_plain
def stacks_of_integers():
    def step(a, y, i, j):
        def body(c, _):
            y, i, j = c
            z = jnp.tanh(y @ a)
            up = z[0, 0] > 0
            return (z, jnp.where(up, i + 7, i * 5), j + 1), (i + 7, j + 7, i * 5, i + j, z[0] > 0)

        (y, _, _), s = lax.scan(body, (y, i, j), None, length=TURNS)

        def turn(c, s):
            return jnp.tanh(c @ a) * sum(k.astype(jnp.float32) for k in s)

        return lax.scan(lambda c, s: (turn(c, s), None), y, s)[0]

    return step, jnp.int32(2), jnp.int16(5)


@_program
def carried_bool():
    def loss(a, y):
        def body(c, _):
            y, b, z = c
            y = jnp.where(b, jnp.tanh(y @ a), y * 0.5 + z)
            return y, b ^ (y.sum() > 0), jnp.where(b, z * y, z)

        y, _, z = _over(body, (y, jnp.array(True), y))
        return (y * z).sum()

    return (loss,)


# Indices.


def _indexed(make):
    """Adds a program of two loops; `make` gives what is written and read in a turn, and when."""

    @_plain
    @functools.wraps(make)
    def built():
        written, read = make()

        def step(a, y):
            def write(i, c):
                z = jnp.tanh(c[0] @ a)
                part = z * jnp.sin(i.astype(z.dtype))
                return z, lax.dynamic_update_index_in_dim(c[1], part, written(i), 0)

            def turn(i, c):
                return jnp.tanh(c @ a) + lax.dynamic_index_in_dim(s, read(i), 0, keepdims=False)

            stack = jnp.zeros((TURNS, *y.shape), y.dtype)
            y, s = lax.fori_loop(0, TURNS, write, (y, stack))
            return lax.fori_loop(0, TURNS, turn, y)

        return (step,)

    return make


@_indexed
def negative_indices():
    return lambda i: i - TURNS, lambda i: i - TURNS


@_indexed
def negative_indices_backwards():
    return lambda i: -1 - i, lambda i: i


@_indexed
def clamped_indices():
    return lambda i: jnp.clip(i, 0, TURNS - 1), lambda i: jnp.minimum(jnp.maximum(i, -3), TURNS)


@_indexed
def indices_modulo():
    return lambda i: i % TURNS, lambda i: (i + TURNS) % TURNS


@_indexed
def indices_of_other_types():
    def read(i):
        return (i.astype(jnp.uint8) + 7).astype(jnp.uint16) - 7

    return lambda i: i.astype(jnp.int8), read


@_indexed
def indices_chosen_and_clamped():
    def written(i):
        back = jnp.where(i < TURNS, -1 - i, i)
        return jnp.clip(jnp.where(back < 0, back + TURNS, back), 0, TURNS - 1)

    return written, lambda i: jnp.abs(i - TURNS + 1).astype(jnp.int16)


INDEXED = [name for name in PROGRAMS if "indices" in name]
"""Those whose one stack is written or read at an index that says the turn in another way."""


# What is overwritten.


def _written(y, a, more=lambda z: ()):
    def body(y, _):
        z = jnp.tanh(y @ a)
        return z, (z, y, *more(z))

    return lax.scan(body, y, None, length=TURNS)


@_plain
def slices_that_loops_start_from():
    def step(a, y):
        y, (s, u) = _written(y, a)

        def turn(c, slices):
            p, q = (
                lax.fori_loop(0, 7, lambda i, p: p.at[i].set(jnp.tanh(p[i + 1] @ a)), part)
                for part in slices
            )
            return c + p @ a * slices[0] + q, None

        return lax.scan(turn, y, (s, u))[0].sum()

    return (step,)


@_plain
def slices_that_are_updated():
    def step(a, y):
        y, (s, u, v) = _written(y, a, lambda z: (jnp.sin(z),))

        def turn(c, slices):
            p, q, r = (part.at[k].set(1.0) for k, part in enumerate(slices))
            return jnp.tanh(c @ a) + (p @ a) * (q @ a) + r @ a, slices[2][0]

        return lax.scan(turn, y, (s, u, v))

    return (step,)


@_plain
def slices_that_are_carried():
    def step(a, y):
        y, (s, u, v) = _written(y, a, lambda z: (jnp.sin(z),))

        def turn(c, s):
            return ((*s, jnp.tanh(c[0] @ a) + c[1] * c[2] + c[3]), None)

        return lax.scan(turn, (y, y * 2, y * 3, y * 4), (s, u, v))[0]

    return (step,)


def _scaled(y, a, k):
    """A loop that stacks what it makes of an array that no turn changes."""

    def body(y, _):
        z = jnp.tanh(y @ a) * k
        return z, (z, jnp.cos(z * k))

    return lax.scan(body, y, None, length=TURNS)


@_plain
def constant_that_a_loop_between_overwrites():
    def step(a, y, k):
        k = jnp.sin(k)
        y, (s, u) = _scaled(y, a, k)
        k = lax.fori_loop(0, 5, lambda i, k: jnp.tanh(k @ a) + y, k)
        return lax.scan(lambda c, s: (jnp.tanh(c @ a) + s[0] * s[1], None), y, (s, u))[0], k

    return step, _array(ROWS, WIDTH, seed=2)


@_plain
def constant_that_the_reading_loop_overwrites():
    def step(a, y, k):
        k = jnp.sin(k)
        y, (s, u) = _scaled(y, a, k)

        def turn(c, s):
            return ((jnp.tanh(c[0] @ a) + s[0] * s[1], jnp.tanh(c[1] @ a)), None)

        return lax.scan(turn, (y, k), (s, u))[0]

    return step, _array(ROWS, WIDTH, seed=2)


@_plain
def gradient_of_a_gradient():
    def loss(a, y, n):
        def step(y, t):
            return jnp.where(t < n, jnp.tanh(y @ a), y)

        return (_over(step, y) ** 2).sum()

    return lambda a, y, n: jax.grad(lambda a: (jax.grad(loss)(a, y, n) ** 2).sum())(a), 4


# Fixed points.


@_program
def fixed_point_in_chunks():
    """As of optimal transport: it runs in chunks until an error is small, which it writes down."""

    def loss(a, y, most, least):
        cost = jnp.abs(y)

        def iterate(c):
            u, v, errors, i = c
            u = -jax.nn.logsumexp(v[None] - cost, axis=1)
            v = -jax.nn.logsumexp(u[:, None] - cost + (y @ a) * 0.1, axis=0)
            error = jnp.abs(lax.stop_gradient(u)).sum()
            return u, v, errors.at[i // 2].set(error), i + 1

        def chunk(c, _):
            last = jnp.maximum(c[3] - 1, 0) // 2
            on = (c[3] < least) | ((c[3] < most) & (c[2][last] > 0.1))
            return lax.cond(on, iterate, lambda c: c, c)

        start = jnp.zeros(ROWS), jnp.zeros(WIDTH), jnp.full(TURNS, -1.0), 0
        u, v, errors, _ = _over(chunk, start)
        return u.sum() + v.sum() + 0 * errors.sum()

    return loss, 8, 2


@_program
def adaptive_steps():
    def loss(a, y, n):
        def body(c, _):
            y, t, h, i = c
            k = jnp.tanh(y @ a + t)
            new = jnp.tanh((y + h * k) @ a + t + h)
            good = jnp.abs(new - k).max() < 0.5
            y = jnp.where(good, y + h * (k + new) / 2, y)
            return y, jnp.where(good, t + h, t), jnp.where(good, h * 1.1, h * 0.5), i + good * n

        y, t, _, _ = _over(body, (y, jnp.float32(0), jnp.float32(0.1), jnp.int32(0)))
        return (y**2).sum() + t

    return loss, jnp.int32(1)


# Loops in loops.


def _nested(between):
    """The gradient of layers of turns; `between` gets what the turns of a layer give, and it."""

    def loss(a, y):
        def turn(y, t):
            y = jnp.tanh(jnp.sin(y) @ a) + y
            return y, (y * t).sum(0)

        def layer(y, t):
            return between(*lax.scan(turn, y, t + jnp.arange(4.0)), t)

        last, kept = lax.scan(layer, y, jnp.arange(TURNS * 1.0))
        return (last**2).sum() + kept.sum()

    return (loss,)


@_program
def layers_of_turns():
    return _nested(lambda y, sums, t: (y, sums.sum()))


@_program
def layers_of_turns_with_branches():
    def between(y, sums, t):
        return lax.cond(
            t < 4, lambda y: jnp.cos(y) + sums.mean(0), lambda y: y * 0.5, y
        ), sums.max()

    return _nested(between)


@_program
def loops_that_branches_run():
    def loss(a, y):
        def step(y, t):
            def turns(y):
                return lax.scan(lambda y, _: (jnp.tanh(y @ a), y[0]), y, None, length=3)[0]

            return lax.cond(t % 2 == 0, turns, lambda y: y, y) + 0.1 * y

        return (_over(step, y) ** 2).sum()

    return (loss,)


@_program
def rows_that_turns_of_layers_write():
    """A GPU writes them beside the products of the turn."""

    def loss(a, y):
        def turn(c, t):
            y, rows = c
            y = jnp.tanh(y @ a) * 0.5 + y
            return (y, lax.dynamic_update_index_in_dim(rows, y[0], jnp.int32(t * 7) % 6, 0)), None

        def layer(y, t):
            start = jnp.sin(y), jnp.zeros((6, WIDTH))
            (y, rows), _ = lax.scan(turn, start, t + jnp.arange(4.0))
            return y, (rows**2).sum()

        last, kept = lax.scan(layer, y, jnp.arange(TURNS * 1.0))
        return (last**2).sum() + kept.sum()

    return (loss,)


@_program
def a_search_of_unknown_turns():
    """How often its loop would run again, and so its price, is not known."""

    def loss(a, y):
        def closer(c):
            z, turn, change = c
            new = jnp.tanh(z @ a) * 0.5
            return new, turn + 1, jnp.abs(new - z).max()

        def step(y, t):
            z, *_ = lax.while_loop(lambda c: (c[1] < 9) & (c[2] > 0.1), closer, (y, 0, t + 1.0))
            return y + jnp.sin(y @ a) * lax.stop_gradient(z)

        return (_over(step, y) ** 2).sum()

    return (loss,)


# The rest.


@_plain
def a_sum_that_is_kept_and_used():
    """A GPU splits the products: each fusion adds the parts up, and one puts what it gets away."""

    def loss(a, y):
        def step(y, t):
            k = jnp.tanh(y @ a)
            return y + 0.1 * (k + jnp.tanh((y + 0.05 * k) @ a))

        return (_over(step, y) ** 2).sum()

    size = 8 * WIDTH
    return lambda _, __, a: jax.grad(loss)(a, a), _array(size, size)


@_program
def random_numbers():
    def loss(a, y, key):
        def body(c, t):
            y, key = c
            key, used = jax.random.split(key)
            kept = jax.random.bernoulli(jax.random.fold_in(used, t), 0.7, y.shape)
            return jnp.where(kept, jnp.tanh(y @ a), y), key

        return (_over(body, (y, key))[0] ** 2).sum()

    return loss, jax.random.PRNGKey(1)


@_program
def sorted_and_gathered():
    def loss(a, y, n):
        def body(y, t):
            z = jnp.sort(jnp.tanh(y @ a), axis=1)
            taken = jnp.take_along_axis(y, jnp.argmax(z, 0)[None] % ROWS, 0)
            return (z * taken).at[(t + n) % ROWS].add(y[(t * n) % ROWS])

        return (_over(body, y) ** 2).sum()

    return loss, 5


@_program
def codes():
    """Of a codebook: the nearest one's number is all that its derivative needs of the search."""

    def loss(a, y):
        book = lax.stop_gradient(jnp.tanh(a))

        def body(y, t):
            far = ((y[:, None, :] - book[None]) ** 2).sum(-1)
            return jnp.tanh(jnp.take(a, far.argmin(-1), axis=0) * y)

        return (_over(body, y) ** 2).sum()

    return (loss,)


@_program
def exchanged_carries():
    def loss(a, y):
        def body(c, _):
            return (c[1], c[2], jnp.tanh(c[0] @ a) * c[1], c[3])

        u, v, w, k = _over(body, (y, y * 2, y + 1, y - 1))
        return (u * v * w * k).sum()

    return (loss,)


@_program
def loop_in_a_loop():
    def loss(a, y, n):
        def body(y, t):
            def grow(c):
                return (c[0] * 1.3 + 0.1, c[1] + 1)

            z, _ = lax.while_loop(lambda c: (c[1] < n) & (c[0].sum() < 100), grow, (y, t))
            return jnp.tanh(y @ a) * lax.stop_gradient(z)

        return (_over(body, y) ** 2).sum()

    return loss, 5


@_program
def two_readers():
    def loss(a, y):
        y, (s, u) = _written(y, a)
        q, _ = lax.scan(lambda q, s: (jnp.tanh(q + s @ a), None), y, s)
        r, _ = lax.scan(lambda q, s: (jnp.tanh(q * s[0] + s[1]), None), y, (s, u), reverse=True)
        return (q * r).sum()

    return (loss,)


# Loops of elementwise operators, which XLA:CPU puts into calls.

LONG = (96, 96)


def _called(make):
    """Adds a program of elementwise loops: a loss of a long array, and its gradient."""

    @functools.wraps(make)
    def built():
        loss, *more = make()
        arguments = (_array(*LONG), _array(TURNS, *LONG, seed=1), *more)
        return jax.value_and_grad(loss, argnums=(0, 1)), arguments

    PROGRAMS[make.__name__] = built
    CALLED.append(make.__name__)
    return make


# Arrays in the state, of which an iteration overwrites a part.

OVERWRITTEN = []
"""Those of which the backward loop has the arrays again if it undoes the updates."""

SIZE = 128
"""Of matrices that are large enough for a CPU's loops to be compiled apart."""


def _overwritten(make):
    """Adds the derivative in a matrix an iteration; `make` gives a loss of these and of rows."""

    @functools.wraps(make)
    def built():
        rows = jnp.asarray([3, 0, 3, -2, 40, 5, 5, 1, 7], jnp.int32)  # some twice, some not there
        return jax.grad(make()), (_array(TURNS, SIZE, SIZE), rows)

    PROGRAMS[make.__name__] = built
    OVERWRITTEN.append(make.__name__)
    return make


def _row(c, x, axis=0):
    return jnp.tanh(jnp.sin(c).sum(axis) @ x)


def _put(c, row, i, axis=0):
    return lax.dynamic_update_index_in_dim(c, row.astype(c.dtype), i, axis)


def _rows(step, c=None, index=lambda t, rows: t):
    """A loss of what a scan's iterations leave in an array, and of what they give."""

    def loss(xs, rows):
        def body(c, given):
            t, x, r = given
            return step(c, x, index(t, r))

        start = jnp.zeros((TURNS, SIZE, SIZE)) if c is None else c
        c_, y = lax.scan(body, start, (jnp.arange(TURNS), xs, rows))
        return jnp.sin(c_.astype(jnp.float32)).sum() + (0 if y is None else jnp.sin(y).sum())

    return loss


@_overwritten
def read_before_a_row_is_written():
    return _rows(lambda c, x, i: (_put(c, _row(c, x), i), None))


@_overwritten
def read_after_a_row_is_written():
    def step(c, x, i):
        c = _put(c, x, i)
        return c, _row(c, x)

    return _rows(step)


@_overwritten
def read_before_and_after():
    def step(c, x, i):
        c = _put(c, _row(c, x), i)
        return c, jnp.cos(c).sum(0) @ x

    return _rows(step)


@_overwritten
def rows_by_data():
    def step(c, x, i):
        return _put(c, _row(c, x), i), None

    return _rows(step, jnp.ones((TURNS, SIZE, SIZE)), lambda t, r: r)


@_overwritten
def rows_of_bfloat16():
    def step(c, x, i):
        return _put(c, _row(c.astype(jnp.float32), x), i), None

    return _rows(step, jnp.ones((TURNS, SIZE, SIZE), jnp.bfloat16))


@_overwritten
def columns():
    def step(c, x, i):
        return _put(c, _row(c, x, 1), i, 1), None

    return _rows(step, jnp.ones((SIZE, TURNS, SIZE)))


@_overwritten
def parts_of_rows():
    def step(c, x, i):
        return lax.dynamic_update_slice(c, _row(c, x)[None, :100], (i, i * 5, 0)), None

    return _rows(step, jnp.ones((TURNS, SIZE, SIZE)))


@_overwritten
def rows_of_a_counter():
    def loss(xs, rows):
        def body(i, c):
            return c.at[i].set(_row(c, xs[i]))

        return jnp.cos(lax.fori_loop(0, TURNS, body, jnp.ones((TURNS, SIZE, SIZE)))).sum()

    return loss


@_program
def a_row_chosen_by_what_a_counter_scales():
    """In some iterations the counter is the iteration's number, and one kernel reads both."""

    def loss(a, y):
        def body(carry, t):
            y, n, c = carry
            n = jnp.where(n < 3, n + 1, 3)
            y = 0.2 * jnp.tanh(y @ a) / (1 - 0.9**n)
            at = (100 * jnp.abs(y).mean()).astype(jnp.int32) % TURNS
            c = lax.dynamic_update_index_in_dim(c, jnp.tanh(y), at, 1)
            return (y + 0.1 * jnp.cos(c).max(1), n, c), y.mean()

        start = y, jnp.int32(0), jnp.ones((ROWS, TURNS, WIDTH))
        (y, _, c), means = lax.scan(body, start, jnp.arange(TURNS), reverse=True)
        return (y * y).mean() + jnp.sin(c).mean() + means.sum()

    return (loss,)


CALLED = []
"""Those whose loops are both called, and for which a stack can be done without."""


@_called
def called_sums():
    def loss(x, ys, base):
        def body(c, y):
            return c + x * (y + base), None

        return lax.scan(body, jnp.zeros_like(x), ys)[0].sum()

    return loss, _array(*LONG, seed=2)


@_called
def called_twice():
    def loss(x, ys):
        def body(c, y):
            return jnp.maximum(c * jnp.tanh(y), x), y * jnp.exp(y)

        c, s = lax.scan(body, jnp.zeros_like(x), ys)
        return lax.scan(lambda d, z: (d * jnp.sin(z + x), None), c, s, reverse=True)[0].sum()

    return (loss,)


@_called
def called_at_negative_indices():
    def loss(x, ys):
        def body(i, c):
            y = lax.dynamic_index_in_dim(ys, i - TURNS, keepdims=False)
            return jnp.where(y > 0, c * jnp.cos(y * x), jnp.abs(c))

        return lax.fori_loop(0, TURNS, body, jnp.ones_like(x)).sum()

    return (loss,)


@_called
def called_of_integers():
    def loss(x, ys, n):
        def body(c, y):
            c, k = c
            return (jnp.where(k % 3 == n, jnp.tanh(c * y), c), k * 5 + 1), None

        return lax.scan(body, (x, jnp.int32(1)), ys)[0][0].sum()

    return loss, jnp.int32(2)

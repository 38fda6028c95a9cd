"""Trains a small convolutional network on made-up images with Adam; it needs nothing but JAX.

`python examples/convnet.py` runs it as it is, and `olla_xla run examples/convnet.py` planned: it
prints the same losses, bit for bit.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

WIDTHS = ((3, 32), (32, 32), (32, 32), (32, 32), (32, 64), (64, 64))
BATCH, SIZE, CLASSES = 8, 32, 10
RATE, DECAYS, EPSILON = 1e-3, (0.9, 0.999), 1e-8


def initial(random):
    """The state of training: weights, Adam's two moments of them, and the number of steps."""
    weights = [
        random.normal(0, (2 / (9 * i)) ** 0.5, (o, i, 3, 3)).astype(np.float32) for i, o in WIDTHS
    ]
    weights.append(np.zeros((WIDTHS[-1][1], CLASSES), np.float32))
    moments = [[np.zeros_like(w) for w in weights] for _ in range(2)]
    return jax.device_put((weights, *moments, np.float32(0)))


def loss_of(weights, images, labels):
    """The mean cross entropy of a batch: images [batch, channels, height, width]."""
    x = images
    for w in weights[:-1]:
        x = jax.nn.relu(jax.lax.conv(x, w, (1, 1), "SAME"))
    logits = jax.nn.log_softmax(x.mean((2, 3)) @ weights[-1])
    return -jnp.take_along_axis(logits, labels[:, None], 1).mean()


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state, images, labels):
    """One step of Adam; returns the new state and the loss."""
    weights, mean, square, step = state
    loss, gradients = jax.value_and_grad(loss_of)(weights, images, labels)
    a, b = DECAYS
    step = step + 1
    mean = jax.tree.map(lambda m, g: a * m + (1 - a) * g, mean, gradients)
    square = jax.tree.map(lambda s, g: b * s + (1 - b) * g * g, square, gradients)
    rate = RATE * jnp.sqrt(1 - b**step) / (1 - a**step)
    weights = jax.tree.map(
        lambda w, m, s: w - rate * m / (jnp.sqrt(s) + EPSILON), weights, mean, square
    )
    return (weights, mean, square, step), loss


def main():
    """Trains for three steps, and prints the loss of each."""
    random = np.random.default_rng(0)
    state = initial(random)
    images = random.normal(size=(BATCH, 3, SIZE, SIZE)).astype(np.float32)
    labels = random.integers(0, CLASSES, BATCH).astype(np.int32)
    for step in range(3):
        state, loss = train_step(state, images, labels)
        print(f"step {step}: loss {loss:.6f}")


if __name__ == "__main__":
    main()

"""A language model of LSTM layers, unrolled over the sequence or scanned.

The layers are those of Zaremba, Sutskever and Vinyals, "Recurrent Neural Network
Regularization" (2014), without their dropout: two of width 650 are that paper's medium model,
two of width 1500 its large one. Four layers, the default, are from Sutskever, Vinyals and Le,
"Sequence to Sequence Learning with Neural Networks" (2014).
"""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from examples.zoo import common

LAYERS = 4
WIDTH = 512
SEQUENCE_LENGTH = 64
SCANNED_LENGTH = 512
VOCABULARY_SIZE = 10000


Carries = tuple[tuple[jax.Array, jax.Array], ...]
"""The hidden and the cell state of each layer."""


class LSTMCell(nn.Module):
    """One step of one LSTM layer: input, forget and output gates and a candidate.

    Attributes:
      width: size of the hidden and of the cell state.
    """

    width: int

    @nn.compact
    def __call__(
        self, carry: tuple[jax.Array, jax.Array], x: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Maps `(hidden, cell)`, each `[batch, width]`, and `x [batch, features]` to the next."""
        hidden, cell = carry
        gates = nn.Dense(4 * self.width, name="input")(x)
        recurrent = nn.Dense(4 * self.width, use_bias=False, name="recurrent")
        gates = gates + recurrent(hidden)
        into, forget, out, candidate = jnp.split(gates, 4, axis=-1)
        cell = nn.sigmoid(forget) * cell + nn.sigmoid(into) * nn.tanh(candidate)
        return nn.sigmoid(out) * nn.tanh(cell), cell


class LSTMStack(nn.Module):
    """One step of several LSTM layers, each fed by the one before.

    Attributes:
      layers: number of LSTM layers.
      width: size of the states.
    """

    layers: int
    width: int

    @nn.compact
    def __call__(self, carries: Carries, x: jax.Array) -> tuple[Carries, jax.Array]:
        """Maps the layers' carries and `x [batch, features]` to the next and `[batch, width]`."""
        after = []
        for index, carry in enumerate(carries):
            after.append(LSTMCell(self.width, name=f"layer{index}")(carry, x))
            x = after[-1][0]
        return tuple(after), x


class LSTMLanguageModel(nn.Module):
    """Token embedding, LSTM layers in a loop over the positions, and an output layer.

    Attributes:
      layers: number of LSTM layers.
      width: size of the embedding and of the state of every layer.
      vocabulary_size: number of tokens.
      scan: whether the loop is a scan, or unrolled in Python.
    """

    layers: int = LAYERS
    width: int = WIDTH
    vocabulary_size: int = VOCABULARY_SIZE
    scan: bool = False

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps int32 tokens `[batch, sequence]` to logits `[batch, sequence, vocabulary]`."""
        batch, length = tokens.shape
        x = nn.Embed(self.vocabulary_size, self.width, name="embed")(tokens)
        zeros = jnp.zeros((batch, self.width), x.dtype)
        carries = ((zeros, zeros),) * self.layers
        if self.scan:
            scanned = nn.scan(
                LSTMStack,
                variable_broadcast="params",
                split_rngs={"params": False},
                in_axes=1,
                out_axes=1,
            )
            _, outputs = scanned(self.layers, self.width, name="stack")(carries, x)
        else:
            stack = LSTMStack(self.layers, self.width, name="stack")
            steps = []
            for position in range(length):
                carries, step = stack(carries, x[:, position])
                steps.append(step)
            outputs = jnp.stack(steps, axis=1)
        return nn.Dense(self.vocabulary_size, name="head")(outputs)


def network(
    *,
    layers: int = LAYERS,
    width: int = WIDTH,
    sequence_length: int = SEQUENCE_LENGTH,
    vocabulary_size: int = VOCABULARY_SIZE,
    scan: bool = False,
) -> common.Network:
    """The LSTM language model with synthetic sequences of `sequence_length` tokens."""
    module = LSTMLanguageModel(layers, width, vocabulary_size, scan)
    return common.linen_network(module, common.token_batches(sequence_length, vocabulary_size))


lstm = common.Model(network)
"""LSTM of 4 layers of width 512, unrolled over 64 tokens."""

lstm_scan = common.Model(functools.partial(network, sequence_length=SCANNED_LENGTH, scan=True))
"""The same LSTM, scanned over 512 tokens; nothing is rematerialised."""

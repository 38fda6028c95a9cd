"""A language model of LSTM layers, unrolled over the sequence.

The layers are those of Zaremba, Sutskever and Vinyals, "Recurrent Neural Network
Regularization" (2014), without their dropout: two of width 650 are that paper's medium model,
two of width 1500 its large one. Four layers, the default, are from Sutskever, Vinyals and Le,
"Sequence to Sequence Learning with Neural Networks" (2014).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from olla_xla.bench.zoo import common

LAYERS = 4
WIDTH = 512
SEQUENCE_LENGTH = 64
VOCABULARY_SIZE = 10000


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


class LSTMLanguageModel(nn.Module):
    """Token embedding, LSTM layers in a Python loop over the positions, and an output layer.

    Attributes:
      layers: number of LSTM layers.
      width: size of the embedding and of the state of every layer.
      vocabulary_size: number of tokens.
    """

    layers: int = LAYERS
    width: int = WIDTH
    vocabulary_size: int = VOCABULARY_SIZE

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps int32 tokens `[batch, sequence]` to logits `[batch, sequence, vocabulary]`."""
        batch, length = tokens.shape
        x = nn.Embed(self.vocabulary_size, self.width, name="embed")(tokens)
        cells = [LSTMCell(self.width, name=f"layer{i}") for i in range(self.layers)]
        zeros = jnp.zeros((batch, self.width), x.dtype)
        carries = [(zeros, zeros)] * self.layers
        outputs = []
        for position in range(length):
            step = x[:, position]
            for index, cell in enumerate(cells):
                carries[index] = cell(carries[index], step)
                step = carries[index][0]
            outputs.append(step)
        outputs = jnp.stack(outputs, axis=1)
        return nn.Dense(self.vocabulary_size, name="head")(outputs)


def network(
    *,
    layers: int = LAYERS,
    width: int = WIDTH,
    sequence_length: int = SEQUENCE_LENGTH,
    vocabulary_size: int = VOCABULARY_SIZE,
) -> common.Network:
    """The LSTM language model with synthetic sequences of `sequence_length` tokens."""
    module = LSTMLanguageModel(layers, width, vocabulary_size)
    return common.linen_network(module, common.token_batches(sequence_length, vocabulary_size))


lstm = common.Model(network)
"""LSTM of 4 layers of width 512, unrolled over 64 tokens."""

"""Scanned models of a size that a CPU runs: nothing is rematerialised, so stacks are most of them.

`olla_xla measure --model=examples.zoo.scanned_steps:llama_layers --max_overhead=0.1` runs one.
"""

from __future__ import annotations

import functools

from examples.zoo import common, gpt, llama, lstm

__all__ = ["gpt_layers", "llama_layers", "lstm_steps"]

_LENGTH, _TOKENS = 256, 1024

llama_layers = common.Model(
    functools.partial(
        llama.network,
        config=llama.LlamaConfig(
            layers=8,
            width=128,
            heads=4,
            key_value_heads=2,
            hidden_width=352,
            sequence_length=_LENGTH,
            vocabulary_size=_TOKENS,
            remat=False,
        ),
    )
)
"""Llama of 8 scanned layers, width 128, sequences of 256 tokens."""

gpt_layers = common.Model(
    functools.partial(
        gpt.network,
        config=gpt.GPTConfig(
            layers=6,
            width=192,
            heads=6,
            sequence_length=_LENGTH,
            vocabulary_size=_TOKENS,
            scan=True,
        ),
    )
)
"""GPT of 6 scanned layers, width 192, sequences of 256 tokens."""

lstm_steps = common.Model(
    functools.partial(
        lstm.network,
        layers=2,
        width=256,
        sequence_length=512,
        vocabulary_size=_TOKENS,
        scan=True,
    )
)
"""LSTM of 2 layers of width 256, scanned over 512 tokens."""

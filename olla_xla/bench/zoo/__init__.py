"""Flax train steps of common architectures, named for `--model=package.module:function`.

Every value of `MODELS` is the path of a function `f(*, batch_size, optimizer, dtype="float32")`
which returns `(step, example_args, jit_kwargs)`; see `olla_xla.bench.zoo.common.build`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from olla_xla.bench.zoo import common

MODELS: dict[str, str] = {
    "mlp": "olla_xla.bench.zoo.mlp:mlp",
    "lenet": "olla_xla.bench.zoo.lenet:lenet",
    "alexnet": "olla_xla.bench.zoo.alexnet:alexnet",
    "vgg11": "olla_xla.bench.zoo.vgg:vgg11",
    "googlenet": "olla_xla.bench.zoo.googlenet:googlenet",
    "resnet18": "olla_xla.bench.zoo.resnet:resnet18",
    "resnet50": "olla_xla.bench.zoo.resnet:resnet50",
    "resnet3d18": "olla_xla.bench.zoo.resnet:resnet3d18",
    "mobilenet_v2": "olla_xla.bench.zoo.mobilenet:mobilenet_v2",
    "mnasnet": "olla_xla.bench.zoo.mobilenet:mnasnet",
    "efficientnet_b0": "olla_xla.bench.zoo.efficientnet:efficientnet_b0",
    "vit_b16": "olla_xla.bench.zoo.vit:vit_b16",
    "mixer_b16": "olla_xla.bench.zoo.vit:mixer_b16",
    "transformer": "olla_xla.bench.zoo.transformer:transformer",
    "xlmr_base": "olla_xla.bench.zoo.transformer:xlmr_base",
    "gpt": "olla_xla.bench.zoo.gpt:gpt",
    "gpt2_small": "olla_xla.bench.zoo.gpt:gpt2_small",
    "gpt_scan": "olla_xla.bench.zoo.gpt:gpt_scan",
    "llama_scan": "olla_xla.bench.zoo.llama:llama_scan",
    "llama_scan_saved": "olla_xla.bench.zoo.llama:llama_scan_saved",
    "lstm": "olla_xla.bench.zoo.lstm:lstm",
    "lstm_scan": "olla_xla.bench.zoo.lstm:lstm_scan",
    "unet": "olla_xla.bench.zoo.unet:unet",
}
"""Model name -> `module:function` path of its registry function."""

ZOO: tuple[str, ...] = tuple(name for name in MODELS if name not in ("mlp", "lenet", "gpt"))
"""The 20 models of the benchmarks: `MODELS` without the two toys and the short GPT."""


def load(name: str) -> common.Model:
    """Returns the registry function of `MODELS` called `name`; ValueError when there is none."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; known models: {', '.join(sorted(MODELS))}")
    module, function = MODELS[name].split(":")
    return getattr(importlib.import_module(module), function)

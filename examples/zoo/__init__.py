"""Flax train steps of common architectures, named for `--model=package.module:function`.

Every value of `MODELS` is the path of a function `f(*, batch_size, optimizer, dtype="float32")`
which returns `(step, example_args, jit_kwargs)`; see `examples.zoo.common.build`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples.zoo import common

MODELS: dict[str, str] = {
    "mlp": "examples.zoo.mlp:mlp",
    "lenet": "examples.zoo.lenet:lenet",
    "alexnet": "examples.zoo.alexnet:alexnet",
    "vgg11": "examples.zoo.vgg:vgg11",
    "googlenet": "examples.zoo.googlenet:googlenet",
    "inception_resnet": "examples.zoo.inception_resnet:inception_resnet",
    "resnet18": "examples.zoo.resnet:resnet18",
    "resnet50": "examples.zoo.resnet:resnet50",
    "resnet3d18": "examples.zoo.resnet:resnet3d18",
    "mobilenet_v2": "examples.zoo.mobilenet:mobilenet_v2",
    "mnasnet": "examples.zoo.mobilenet:mnasnet",
    "efficientnet_b0": "examples.zoo.efficientnet:efficientnet_b0",
    "vit_b16": "examples.zoo.vit:vit_b16",
    "mixer_b16": "examples.zoo.vit:mixer_b16",
    "transformer": "examples.zoo.transformer:transformer",
    "xlmr_base": "examples.zoo.transformer:xlmr_base",
    "gpt": "examples.zoo.gpt:gpt",
    "gpt2_small": "examples.zoo.gpt:gpt2_small",
    "gpt_scan": "examples.zoo.gpt:gpt_scan",
    "llama_scan": "examples.zoo.llama:llama_scan",
    "llama_scan_saved": "examples.zoo.llama:llama_scan_saved",
    "lstm": "examples.zoo.lstm:lstm",
    "lstm_scan": "examples.zoo.lstm:lstm_scan",
    "unet": "examples.zoo.unet:unet",
}
"""Model name -> `module:function` path of its registry function."""

ZOO: tuple[str, ...] = tuple(
    name for name in MODELS if name not in ("mlp", "lenet", "inception_resnet", "gpt")
)
"""The 20 models of the benchmarks: `MODELS` without two toys, the short GPT, and what is there for
one paper's figures."""


def load(name: str) -> common.Model:
    """Returns the registry function of `MODELS` called `name`; ValueError when there is none."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; known models: {', '.join(sorted(MODELS))}")
    module, function = MODELS[name].split(":")
    return getattr(importlib.import_module(module), function)

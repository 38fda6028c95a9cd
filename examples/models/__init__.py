"""Flax train steps of common architectures, named for `--model=package.module:function`.

Every value of `MODELS` is the path of a function `f(*, batch_size, optimizer, dtype="float32")`
which returns `(step, example_args, jit_kwargs)`; see `examples.models.common.build`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples.models import common

MODELS: dict[str, str] = {
    "mlp": "examples.models.mlp:mlp",
    "lenet": "examples.models.lenet:lenet",
    "alexnet": "examples.models.alexnet:alexnet",
    "vgg11": "examples.models.vgg:vgg11",
    "googlenet": "examples.models.googlenet:googlenet",
    "resnet18": "examples.models.resnet:resnet18",
    "resnet50": "examples.models.resnet:resnet50",
    "resnet3d18": "examples.models.resnet:resnet3d18",
    "mobilenet_v2": "examples.models.mobilenet:mobilenet_v2",
    "mnasnet": "examples.models.mobilenet:mnasnet",
    "efficientnet_b0": "examples.models.efficientnet:efficientnet_b0",
    "vit_b16": "examples.models.vit:vit_b16",
    "mixer_b16": "examples.models.vit:mixer_b16",
    "transformer": "examples.models.transformer:transformer",
    "xlmr_base": "examples.models.transformer:xlmr_base",
    "gpt": "examples.models.gpt:gpt",
    "gpt2_small": "examples.models.gpt:gpt2_small",
    "llama_scan": "examples.models.llama:llama_scan",
    "lstm": "examples.models.lstm:lstm",
    "unet": "examples.models.unet:unet",
}
"""Model name -> `module:function` path of its registry function."""

ZOO: tuple[str, ...] = tuple(name for name in MODELS if name not in ("mlp", "lenet", "gpt"))
"""The 17 models of the benchmarks: `MODELS` without the two toys and the short GPT."""


def load(name: str) -> common.Model:
    """Returns the registry function of `MODELS` called `name`; ValueError when there is none."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; known models: {', '.join(sorted(MODELS))}")
    module, function = MODELS[name].split(":")
    return getattr(importlib.import_module(module), function)

"""Flax train steps of common architectures, named for `--model=package.module:function`.

Every value of `MODELS` is the path of a function `f(*, batch_size, optimizer)` which
returns `(step, example_args, jit_kwargs)`; see `examples.models.common.build`.
"""

MODELS: dict[str, str] = {
    "mlp": "examples.models.mlp:mlp",
    "lenet": "examples.models.lenet:lenet",
    "resnet18": "examples.models.resnet:resnet18",
    "resnet50": "examples.models.resnet:resnet50",
    "vgg11": "examples.models.vgg:vgg11",
    "efficientnet_b0": "examples.models.efficientnet:efficientnet_b0",
    "gpt": "examples.models.gpt:gpt",
    "gpt2_small": "examples.models.gpt:gpt2_small",
    "llama_scan": "examples.models.llama:llama_scan",
    "lstm": "examples.models.lstm:lstm",
}
"""Model name -> `module:function` path of its registry function."""

"""The steps whose planned modules get faults: the zoo's models, small, and a few programs.

Each compiles in a second or so. Widths are such that most arrays have several of their shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from benchmarks.mutants import programs
from examples.zoo import common, load, mlp, mobilenet, resnet
from examples.zoo.efficientnet import MBConv, Stage
from examples.zoo.gpt import GPTConfig
from examples.zoo.llama import LlamaConfig
from examples.zoo.transformer import TransformerConfig
from olla_xla.problem.options import PlanOptions

Built = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""(function, example arguments, arguments for jax.jit)."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A step, and how it is planned.

    Attributes:
      build: makes the step. max_overhead: as in PlanOptions; with it there may be clones.
      share: how many mutants it gets, more where they compile quickly.
    """

    build: Callable[[], Built]
    max_overhead: float | None = None
    share: int = 1

    @property
    def options(self) -> PlanOptions:
        """Options that give the same plan each time."""
        return PlanOptions(time_limit=60.0, step_limit=400, max_overhead=self.max_overhead)


def _model(name: str, optimizer: str, batch_size: int = 2, **sizes: Any) -> Built:
    return load(name)(batch_size=batch_size, optimizer=optimizer, **sizes)


def _gpt(optimizer: str) -> Built:
    config = GPTConfig(layers=1, width=16, heads=2, sequence_length=8, vocabulary_size=32)
    return _model("gpt", optimizer, config=config)


def _llama(name: str) -> Built:
    config = LlamaConfig(
        layers=3, width=16, heads=2, key_value_heads=1, hidden_width=24, sequence_length=8,
        vocabulary_size=32,
    )  # fmt: skip
    return _model(name, "sgd", config=config)


def _gpt_scan() -> Built:
    config = GPTConfig(layers=3, width=16, heads=2, sequence_length=8, vocabulary_size=32)
    return _model("gpt_scan", "sgd", config=config)


def _lstm_scan() -> Built:
    sizes = {"layers": 1, "width": 16, "sequence_length": 6, "vocabulary_size": 16}
    return _model("lstm_scan", "sgd", 16, **sizes)


def _transformer() -> Built:
    config = TransformerConfig(
        layers=1, width=16, heads=2, hidden_width=32, sequence_length=8, vocabulary_size=32
    )
    return _model("transformer", "sgd", config=config)


def _network(module: Any, image_size: int, optimizer: str) -> Built:
    network = common.linen_network(module, common.image_batches(image_size, 3, 10))
    return common.build(network, batch_size=2, optimizer=optimizer)


def _resnet() -> Built:
    return _network(resnet.ResNet((1,), resnet.Bottleneck, 10), 16, "momentum")


def _mobilenet() -> Built:
    import jax

    stages = (Stage(2, 3, 1, 2, 32),)
    return _network(mobilenet.MobileNet(stages, jax.nn.relu6, 10), 16, "sgd")


def _efficientnet() -> Built:
    import flax.linen as nn

    class Small(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Conv(8, (3, 3), strides=(2, 2))(x)
            x = MBConv(3, 1, 2, 8)(x)
            return nn.Dense(10)(MBConv(3, 1, 2, 8)(x).mean(axis=(1, 2)))

    return _network(Small(), 16, "sgd")


def _vit() -> Built:
    sizes = {"image_size": 32, "num_classes": 10, "layers": 1, "width": 16, "heads": 2}
    return _model("vit_b16", "sgd", **sizes)


def _unet() -> Built:
    return _model("unet", "sgd", 1, image_size=8, width=32, multipliers=(1,))


def _lstm(optimizer: str) -> Built:
    sizes = {"layers": 1, "width": 16, "sequence_length": 4, "vocabulary_size": 16}
    return _model("lstm", optimizer, 16, **sizes)


def _program(name: str) -> Built:
    return getattr(programs, name)()


def _mlp() -> Built:
    return _network(mlp.MLP((32, 32), 10), 8, "momentum")


CASES: dict[str, Case] = {
    "mlp": Case(_mlp),
    "lenet": Case(lambda: _model("lenet", "sgd")),
    "resnet": Case(_resnet),
    "mobilenet": Case(_mobilenet),
    "efficientnet": Case(_efficientnet, 0.3),
    "lstm": Case(lambda: _lstm("sgd"), 0.3),
    "lstm_adam": Case(lambda: _lstm("adam")),
    "gpt": Case(lambda: _gpt("sgd"), 0.3),
    "llama_scan": Case(lambda: _llama("llama_scan")),
    "llama_saved": Case(lambda: _llama("llama_scan_saved"), 0.3, share=2),
    "gpt_scan": Case(_gpt_scan, 0.3, share=2),
    "lstm_scan": Case(_lstm_scan, 0.3, share=2),
    "transformer": Case(_transformer, 0.3),
    "vit": Case(_vit),
    "unet": Case(_unet, 0.3),
    "recurrent": Case(lambda: _program("recurrent"), share=2),
    "scanned": Case(lambda: _program("scanned"), share=2),
    "cached": Case(lambda: _program("cached"), share=2),
    "stacked": Case(lambda: _program("stacked"), share=2),
    "unrolled": Case(lambda: _program("unrolled"), 0.3, share=2),
    "branched": Case(lambda: _program("branched"), 0.5, share=2),
    "overwritten": Case(lambda: _program("overwritten"), 0.5, share=2),
    "looped": Case(lambda: _program("looped"), share=2),
    "nested": Case(lambda: _program("nested"), share=2),
    "branching": Case(lambda: _program("branching"), share=2),
    "dropout": Case(lambda: _program("dropout"), 0.3, share=2),
    "callbacks": Case(lambda: _program("callbacks"), share=2),
    "ordered": Case(lambda: _program("ordered"), share=2),
    "updates": Case(lambda: _program("updates"), share=2),
    "mixed": Case(lambda: _program("mixed"), share=2),
    "variances": Case(lambda: _program("variances"), share=2),
}
"""Name -> case."""

AUDITED = tuple(case for case in CASES if case != "callbacks")
"""Those whose results do not depend on an order that JAX does not promise, as a plan keeps it."""

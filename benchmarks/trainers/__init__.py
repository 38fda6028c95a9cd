"""Train steps of other projects' trainers, each with the trainer's own remat policies.

A module of this package makes the step of one trainer: its `step` gives what is to be jitted, and
what with. The trainers are no dependencies of this package; `uv run --group trainers` has
them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import olla_xla
from olla_xla.errors import InputError
from olla_xla.pieces.sharded import leaf_shardings
from olla_xla.pieces.transform import in_pieces
from olla_xla.targets.target import Target

__all__ = ["TRAINERS", "Trainer", "TrainerStep", "parse_trainer"]


@dataclasses.dataclass(frozen=True)
class TrainerStep:
    """A step as a trainer jits it.

    Attributes:
      function: what is jitted. options: of `jax.jit`.
      arguments, keywords: arrays, or their shapes on the target's devices.
      context: makes what the step is lowered within, such as a mesh.
    """

    function: Callable[..., Any]
    options: Mapping[str, Any]
    arguments: Sequence[Any]
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


@dataclasses.dataclass(frozen=True)
class Trainer:
    """A trainer.

    Attributes:
      name: as on the command line. policies: its own, from what keeps most to what keeps least.
      devices: that its step is for, unless the setting "devices" says otherwise.
      settings: names of settings -> their default values.
    """

    name: str
    policies: tuple[str, ...]
    devices: int = 1
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def step(self, policy: str, settings: Mapping[str, str], target: Target) -> TrainerStep:
        """The step with one of the policies; in pieces where the settings say in how many.

        Raises:
          InputError: the trainer is not installed.
        """
        own = {key: value for key, value in settings.items() if key not in (_PIECES, _SPILLED)}
        try:
            module = importlib.import_module(f"{__name__}.{self.name}_step")
            made = module.step(policy, own, target)
        except ImportError as error:
            raise InputError(
                f"the trainer {self.name} needs {error.name}, which is not installed; use "
                "uv run --group trainers"
            ) from error
        if _PIECES in settings:
            made = _cut(made, int(settings[_PIECES]))
        if _SPILLED in settings:
            spilled = olla_xla.spill(made.function, host_budget=settings[_SPILLED])
            made = dataclasses.replace(made, function=spilled)
        return made


def _cut(step: TrainerStep, pieces: int) -> TrainerStep:
    shardings = leaf_shardings(step.arguments, step.keywords, step.options.get("in_shardings"))
    function = in_pieces(
        step.function, pieces, lambda plan: print(plan, file=sys.stderr), shardings
    )
    return dataclasses.replace(step, function=function)


TRAINERS = {
    trainer.name: trainer
    for trainer in (
        Trainer(
            "maxtext",
            ("minimal", "save_qkv_proj", "save_out_proj", "full"),
            devices=8,
            settings={"model_name": "default", "per_device_batch_size": "1", "devices": "8"},
        ),
        Trainer("keras", ("none", "full"), settings={"batch_size": "32"}),
        Trainer("gemma", ("none", "blocks"), settings={"batch_size": "2"}),
        Trainer("equinox", ("none", "blocks"), settings={"batch_size": "8"}),
        Trainer(
            "nnx",
            ("none", "blocks"),
            settings={"batch_size": "8", "layers": "6", "words": "32000"},
        ),
    )
}
"""By name. More of MaxText's settings may be given than are listed: all of its own."""

_PIECES = "pieces"
"""A setting of every trainer: in how many `olla_xla.fission` runs what makes its largest values."""

_SPILLED = "host_budget"
"""A setting of every trainer: the most host memory that `olla_xla.spill` may take."""


def parse_trainer(text: str) -> tuple[Trainer, dict[str, str]]:
    """A trainer and its settings from "name" or "name:setting=value:setting=value".

    Raises:
      InputError: there is no such trainer or setting.
    """
    name, *parts = text.split(":")
    if name not in TRAINERS:
        raise InputError(f"--trainers: {name!r} is not known; use some of {', '.join(TRAINERS)}")
    trainer = TRAINERS[name]
    given: dict[str, str] = {}
    for part in parts:
        key, _, given[key] = part.partition("=")
    known = ", ".join(trainer.settings)
    for key, value in given.items():
        if not value or (name != "maxtext" and key not in (*trainer.settings, _PIECES, _SPILLED)):
            raise InputError(f"--trainers: {name} has no setting {key}={value}; it has {known}")
    if not given.get(_PIECES, "2").isdecimal():
        raise InputError(f"--trainers: pieces={given[_PIECES]} is not a number of pieces")
    return trainer, {**trainer.settings, **given}

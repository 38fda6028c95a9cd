"""The devices a step can be planned for: this machine's CPU, and an H100 that need not be there.

The H100 is a compile-only device: XLA's whole GPU pipeline runs, from fusion to buffer assignment,
but nothing can be executed. It takes JAX's CUDA plugin and no card.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
from importlib import resources
from typing import Any

import jax
from jax.experimental import topologies

from olla_xla.errors import InputError

__all__ = ["TARGETS", "Target", "prepare_environment", "target"]

TARGETS = {"cpu": "cpu", "h100": "cuda"}
"""Target name -> the platform whose memory rules hold there."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A device to compile for.

    Attributes:
      name: one of `TARGETS`.
      device: a compile-only `jax.Device`, or None for the default device of this process.
      memory_bytes: what the device has; None where that is this machine's affair.
    """

    name: str
    device: Any = None
    memory_bytes: int | None = None

    @property
    def platform(self) -> str:
        """The name of its memory rules, one of the values of `TARGETS`."""
        return TARGETS[self.name]

    def place(self, arguments: Any) -> Any:
        """A pytree of arrays or `jax.ShapeDtypeStruct` as shapes on the device."""
        if self.device is None:
            return arguments
        sharding = jax.sharding.SingleDeviceSharding(self.device)

        def on_device(leaf: Any) -> Any:
            if not hasattr(leaf, "dtype"):
                return leaf  # a static argument
            weak = getattr(leaf, "weak_type", False)
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)

        return jax.tree.map(on_device, arguments)


def prepare_environment(name: str) -> None:
    """Sets what must be set before JAX starts a backend, here and in processes started from here.

    Neither target takes a card, so JAX is kept from looking for one, and XLA from tuning on it.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")
    flags = os.environ.get("XLA_FLAGS", "")
    if TARGETS[name] == "cuda" and "xla_gpu_autotune_level" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()


def target(name: str) -> Target:
    """The target of that name.

    Raises:
      InputError: it is unknown, or this installation cannot compile for it.
    """
    if name not in TARGETS:
        raise InputError(f"target={name!r} is not known; use one of {', '.join(TARGETS)}")
    if name == "cpu":
        if jax.default_backend() != "cpu":
            raise InputError(
                f"target=cpu, but JAX runs on {jax.default_backend()}; set JAX_PLATFORMS=cpu"
            )
        return Target(name)
    config = resources.files("olla_xla.targets").joinpath("h100.txtpb").read_text()
    memory = re.search(r"device_memory_size: (\d+)", config)
    return Target(name, _h100(config), int(memory[1]) if memory else None)


def _h100(config: str) -> Any:
    hint = "pip install 'olla-xla[cuda13]'"
    # Without the check JAX would name its plugins' entry points rather than what is missing.
    if importlib.util.find_spec("jax_plugins") is None:
        raise InputError(f"target=h100 needs JAX's CUDA plugin; {hint}")
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=config, topology="1x1x1"
        )
    except (NotImplementedError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"target=h100 needs JAX's CUDA plugin ({reason}); {hint}") from error
    return topology.devices[0]

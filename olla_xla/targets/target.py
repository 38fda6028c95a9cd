"""The devices a step can be planned for: this machine's CPU, and GPUs and TPUs, present or absent.

GPUs and TPUs are compile-only devices: XLA's whole pipeline runs, from fusion to buffer assignment,
but nothing can be executed. JAX's CUDA plugin is needed and no card, or libtpu and no TPU.

What XLA must know of a card is a file beside this one, its GpuTargetConfigProto as text. Figures
are those of openxla/xla, xla/backends/gpu/target_config/specs, with the versions of the libraries
that JAX's plugin brings; memory is what the driver reports of such a card. XLA has none of an L4.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import os
import re
from importlib import resources
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from hlo.backend import is_host, platform
from hlo.backend.cpu import CPU
from hlo.backend.cuda import CUDA
from hlo.backend.tpu import TPU
from olla_xla.errors import InputError
from olla_xla.targets.tpu import CHIPS, prepare_libtpu, tpu_devices
from olla_xla.version import to_install

_FORCED = "xla_force_host_platform_device_count"

_HOST_MEMORY = "pinned_host"

_CARDS = ("v100", "a100_40", "a100_80", "a6000", "rtx6000pro", "h100", "h200", "b200", "gb200")

TARGETS = {
    "cpu": CPU.name,
    **dict.fromkeys(_CARDS, CUDA.name),
    **dict.fromkeys(CHIPS, TPU.name),
}
"""Target name -> the platform whose memory rules hold there."""


@dataclasses.dataclass(frozen=True)
class Card:
    """Memory, bandwidth and compiler configuration of a GPU or TPU that need not be present.

    Attributes:
      name: the target's. kind: as JAX names such a device (`device_kind`).
      memory_bytes: what the device has. bytes_per_second: peak bandwidth of its memory.
      plugin: the extra of this package that brings its compiler. CUDA 13 knows nothing older than
        compute capability 7.5, which leaves "cuda12" for a V100.
      config: of a GPU, the text of its GpuTargetConfigProto, which XLA is given; "" of a TPU.
    """

    name: str
    kind: str
    memory_bytes: int
    bytes_per_second: int
    config: str = dataclasses.field(repr=False)
    plugin: str = "cuda13"


@functools.cache
def card(name: str) -> Card:
    """Returns memory, bandwidth and configuration of a GPU or TPU target; needs no plugin. Raises
    InputError if there is no such target.
    """
    if name in CHIPS:
        chip = CHIPS[name]
        return Card(name, chip.kind, chip.memory_bytes, chip.bytes_per_second, "", "tpu")
    if name not in _CARDS:
        known = ", ".join((*_CARDS, *CHIPS))
        raise InputError(f"target={name!r} is not a GPU or TPU; use one of {known}")
    config = resources.files("olla_xla.targets").joinpath(f"{name}.txtpb").read_text()
    fields = dict(re.findall(r"^ *(\w+): (\d+|\"[^\"]*\")$", config, re.MULTILINE))
    return Card(
        name=name,
        kind=fields["device_description_str"].strip('"'),
        memory_bytes=int(fields["device_memory_size"]),
        bytes_per_second=int(fields["memory_bandwidth"]),
        config=config,
        plugin="cuda12" if name == "v100" else "cuda13",
    )


def memory_of_kind(kind: str) -> int | None:
    """Bytes of memory of the GPU or TPU target with this `device_kind` of JAX; None without one."""
    cards = (card(name) for name, where in TARGETS.items() if not platform(where).is_host)
    return next((c.memory_bytes for c in cards if c.kind == kind), None)


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices that a step is compiled for; GPUs and TPUs need not be present.

    Attributes:
      name: one of `TARGETS`.
      device: a compile-only `jax.Device`, or None for the default device of this process.
      memory_bytes: what each device has; None for this machine's.
      devices: all of them, more than one where a step is to be sharded; () for one CPU.
      kind: as JAX names the device; "" for this machine's.
    """

    name: str
    device: Any = None
    memory_bytes: int | None = None
    devices: tuple[Any, ...] = ()
    kind: str = ""

    @property
    def platform(self) -> str:
        """The name of the platform whose memory rules hold: "cpu", "cuda" or "tpu"."""
        return TARGETS[self.name]

    def place(self, arguments: Any, split: Any = None) -> Any:
        """Replaces a pytree's arrays by `jax.ShapeDtypeStruct`s placed on these devices. If these
        are this process's default device, the pytree is returned as it is. What is in host memory
        (`memory_kind` "pinned_host") is so beside these devices too. Raises InputError if there is
        no array, so that nothing says what the step is compiled for.

        Args:
          arguments: the pytree; leaves that are no arrays stay as they are.
          split: the same tree with, at each leaf, the axis that is divided among the devices, or -1
            to have the leaf on each of them. None: every device has everything, but for leaves that
            have a sharding on these devices, which they keep.
        """
        if self.device is None and len(self.devices) < 2:
            return arguments

        arrays = []

        def on_devices(leaf: Any, axis: int) -> Any:
            if not hasattr(leaf, "dtype"):
                return leaf  # a static argument
            arrays.append(leaf)
            if split is None and self._has(leaf):
                return leaf
            host = getattr(getattr(leaf, "sharding", None), "memory_kind", None) == _HOST_MEMORY
            weak, sharding = getattr(leaf, "weak_type", False), self._sharding(axis, host)
            # As JAX takes an array: NumPy's int64 is int32 unless 64 bits are on.
            dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
            return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding, weak_type=weak)

        axes = jax.tree.map(lambda _: -1, arguments) if split is None else split
        placed = jax.tree.map(on_devices, arguments, axes)
        if not arrays:
            raise InputError(
                "the step has no array argument that tells JAX to compile it for "
                f"target={self.name}; add an array argument, such as a scalar"
            )
        return placed

    def _has(self, leaf: Any) -> bool:
        """Whether an array or ShapeDtypeStruct has a sharding on these devices already."""
        sharding = getattr(leaf, "sharding", None)
        return sharding is not None and sharding.device_set <= set(self.devices)

    def _sharding(self, axis: int, host: bool) -> jax.sharding.Sharding:
        if len(self.devices) < 2 and not host:
            return jax.sharding.SingleDeviceSharding(self.device)
        mesh = jax.sharding.Mesh(np.array(self.devices), ("devices",))
        spec = (None,) * axis + ("devices",) if axis >= 0 else ()
        kind = _InHostMemory if host else jax.sharding.NamedSharding
        return kind(mesh, jax.sharding.PartitionSpec(*spec))


class _InHostMemory(jax.sharding.NamedSharding):
    """Sharding of arrays in the host's memory, also beside compile-only GPUs. These list no
    memories, so that JAX drops a `memory_kind` that its own shardings are given, and compiles for
    an array on the device.
    """

    memory_kind = property(lambda self: _HOST_MEMORY)  # pyright: ignore

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InHostMemory) and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((_InHostMemory, super().__hash__()))


def prepare_environment(name: str, devices: int = 1) -> None:
    """Sets environment variables, also for child processes, and JAX options, before JAX starts. No
    target needs a GPU or TPU, so JAX is kept from looking for one, and XLA from autotuning.

    Args:
      name: one of `TARGETS`. devices: how many are wanted; JAX makes a CPU's when it starts.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")
    if name in CHIPS:
        prepare_libtpu()
    flags = os.environ.get("XLA_FLAGS", "")
    if platform(TARGETS[name]).autotunes and "xla_gpu_autotune_level" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()
    if platform(TARGETS[name]).is_host and devices > 1 and _FORCED not in flags:
        with contextlib.suppress(RuntimeError):  # JAX has started; `target` says what is missing
            jax.config.update("jax_num_cpu_devices", devices)


def target(name: str, devices: int = 1, topology: str = "") -> Target:
    """Returns the devices of a target; GPUs and TPUs are compile-only and need JAX's plugin. Raises
    InputError if it is unknown, has no such devices, or cannot be compiled for here.

    Args:
      name: one of `TARGETS`. devices: how many; a GPU's are those of one machine.
      topology: only of a TPU, how many chips in each direction, such as "2x4"; then all of its
        devices are taken. By default the smallest usual one with so many devices.
    """
    if topology and name not in CHIPS:
        raise InputError(f"topology={topology} is only for TPUs, and target={name!r} is a GPU")
    if name not in TARGETS:
        raise InputError(f"target={name!r} is unknown; use one of {', '.join(TARGETS)}")
    if devices < 1:
        raise InputError(f"devices={devices} must be at least 1")
    if platform(TARGETS[name]).is_host:
        return _cpu(devices)
    chosen_card = card(name)
    if name in CHIPS:
        described = tpu_devices(CHIPS[name], devices, topology)
    else:
        described = _described(chosen_card, devices)
    return Target(name, described[0], chosen_card.memory_bytes, described, chosen_card.kind)


def _cpu(devices: int) -> Target:
    if not is_host(jax.default_backend()):
        raise InputError(
            f"target=cpu, but JAX runs on {jax.default_backend()}; set JAX_PLATFORMS=cpu"
        )
    if devices == 1:
        return Target("cpu")
    if len(jax.devices()) < devices:
        raise InputError(
            f"target=cpu has {len(jax.devices())} devices here, not {devices}; set "
            f"XLA_FLAGS=--{_FORCED}={devices}"
        )
    return Target("cpu", devices=tuple(jax.devices()[:devices]))


def installed() -> list[str]:
    """Names of targets that commands use by default: "cpu", and "h100" if its plugin is there."""
    return ["cpu", "h100"] if _is_installed(card("h100").plugin) else ["cpu"]


def _is_installed(plugin: str) -> bool:
    """Whether the plugin `jax_plugins.xla_<plugin>` of JAX is installed."""
    names = ("jax_plugins", f"jax_plugins.xla_{plugin}")  # without the first the second raises
    return all(importlib.util.find_spec(name) is not None for name in names)


def _described(found: Card, count: int) -> tuple[Any, ...]:
    """Makes `count` compile-only devices of a GPU. InputError without a plugin that works."""
    hint = to_install(found.plugin)
    needs = f"target={found.name} needs JAX's CUDA plugin"
    # Without the check JAX would name its plugins' entry points rather than what is missing.
    if importlib.util.find_spec("jax_plugins") is None:
        raise InputError(f"{needs}; {hint}")
    if found.plugin == "cuda12" and not _is_installed("cuda12"):
        raise InputError(f"{needs} for CUDA 12, the last CUDA that supports this card; {hint}")
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=found.config, topology=f"1x1x{count}"
        )
    except (NotImplementedError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if _is_installed(found.plugin) and os.environ.get("JAX_PLATFORMS") != "cpu":
            raise InputError(
                f"target={found.name}: JAX's CUDA plugin is installed and does not start here "
                f"({reason}); without a driver, set JAX_PLATFORMS=cpu before JAX is imported"
            ) from error
        raise InputError(f"{needs} ({reason}); {hint}") from error
    return tuple(topology.devices)

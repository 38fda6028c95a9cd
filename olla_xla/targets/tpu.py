"""TPUs to compile for, present or absent: libtpu compiles for them on any machine.

Memory is what libtpu says a program may take; bandwidth is from Google Cloud's documentation of
each TPU version.
"""

import dataclasses
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

from jax.experimental import topologies

from olla_xla.errors import InputError
from olla_xla.version import to_install


@dataclasses.dataclass(frozen=True)
class Chip:
    """Figures of one TPU version.

    Attributes:
      name: the target's. kind: as JAX names such a device (`device_kind`).
      memory_bytes: HBM of a device that a program may take. bytes_per_second: its peak bandwidth.
      directions: dimensions of the network of chips, 2 or 3.
      devices: how many JAX sees in one chip.
    """

    name: str
    kind: str
    memory_bytes: int
    bytes_per_second: int
    directions: int
    devices: int = 1


def _chip(
    name: str, kind: str, gibibytes: float, gigabytes: int, directions: int, devices: int = 1
) -> Chip:
    return Chip(name, kind, int(gibibytes * 2**30), gigabytes * 10**9, directions, devices)


CHIPS = {
    chip.name: chip
    for chip in (
        _chip("v5e", "TPU v5 lite", 15.75, 819, 2),
        _chip("v5p", "TPU v5", 95.73, 2765, 3),
        _chip("v6e", "TPU v6 lite", 31.24, 1640, 2),
        _chip("tpu7x", "TPU7x", 94.74, 3690, 3, devices=2),
    )
}
"""By the target's name."""

_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # no query of a cloud's metadata server for this machine's TPU
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # any type will do: `tpu_devices` names the topology
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Several processes may compile at a time; libtpu's lock is for those that run on the TPU.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def prepare_libtpu() -> None:
    """Sets environment variables, unless set, that keep libtpu from looking for a TPU. On a machine
    with a TPU nothing is set, since JAX may run on it.
    """
    if any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*")):
        return
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def tpu_devices(chip: Chip, count: int, topology: str = "") -> tuple[Any, ...]:
    """Makes compile-only devices of a TPU version, as `jax.Device`s. Raises InputError if libtpu is
    missing or knows no such topology, or none is usual for so many.

    Args:
      chip: their version. count: how many, if no topology is given.
      topology: chips in each direction, such as "2x4".
    """
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(f"target={chip.name} needs libtpu; {to_install('tpu')}")
    name = topology or _usual(chip, count)
    if not _TOPOLOGY.fullmatch(name):  # libtpu would end the process
        example = "x".join("2" * chip.directions)
        raise InputError(f"topology={name!r} must give the chips per direction, such as {example}")
    prepare_libtpu()
    try:
        devices = topologies.get_topology_desc(
            platform="tpu", topology_name=f"{chip.name}:{name}"
        ).devices
    except (NotImplementedError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"target={chip.name}: libtpu has no topology {name} ({reason})") from error
    return tuple(devices if topology else devices[:count])


_TOPOLOGY = re.compile(r"[1-9]\d*(x[1-9]\d*){1,2}")


def _usual(chip: Chip, count: int) -> str:
    """The most even topology, such as "2x4", for `count` devices; InputError if no power of two."""
    chips = -(-count // chip.devices)
    if count & (count - 1):
        raise InputError(
            f"devices={count} is not a power of two, so name a topology= of target={chip.name}, "
            f"such as {'x'.join('2' * chip.directions)} for {chip.devices * 2**chip.directions} "
            "devices"
        )
    power, lengths = chips.bit_length() - 1, []
    for left in range(chip.directions, 0, -1):  # the shortest first
        lengths.append(1 << power // left)
        power -= power // left
    if chip.directions == 3:
        lengths.sort(reverse=chips <= 4)  # 2x2x1, but 2x2x4
    return "x".join(map(str, lengths))

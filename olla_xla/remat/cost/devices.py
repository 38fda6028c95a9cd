"""The device that a target's operators are priced for."""

from __future__ import annotations

from olla_xla.remat.cost.calibrate import calibrated_cpu
from olla_xla.remat.cost.roofline import H100, Device

__all__ = ["device"]


def device(target: str) -> Device:
    """The rates of a target's device: "cuda" an H100's figures, "cpu" this machine's, measured."""
    return H100 if target == "cuda" else calibrated_cpu()

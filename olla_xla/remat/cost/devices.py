"""The rates of CPUs, GPUs and TPUs by which a target's operators are priced."""

import dataclasses
import logging
import re

from hlo.backend import platform
from hlo.backend.tpu import TPU
from olla_xla.remat.cost.calibrate import calibrated_cpu
from olla_xla.remat.cost.roofline import H100, Device

_logger = logging.getLogger("olla_xla")


def _card(
    name: str,
    terabytes: float,
    float32: float,
    matrix: float,
    narrow: float,
    link: float,
    host: float,
) -> Device:
    """Makes the Device of a GPU, or of one device of a TPU, from its peak rates.

    These are TB/s of memory; TFLOP/s in float32, of dots in float32, and of dots in 16 bits; GB/s
    to other devices in one direction (NVLink, else PCIe; ICI), half of the documents' sum of both;
    and GB/s to the host in one direction (PCI Express 3 to 5: 16, 32, 64; a GB200 has half of its
    superchip's NVLink-C2C). The sustained part of each is taken to be an H100's, not measured.
    """
    return Device(
        name,
        0.9 * terabytes * 1e12,
        0.5 * float32 * 1e12,
        float32 * 1e12 / 8,
        0.6 * matrix * 1e12,
        2e-6,
        narrow_per_second=0.6 * narrow * 1e12,
        sent_bytes_per_second=0.8 * link * 1e9,
        host_bytes_per_second=0.8 * host * 1e9,
    )


_VMEM_RATIO = 22
"""Bandwidth of a TPU's VMEM relative to its HBM's: Austin et al., "How to Scale Your Model" (2025),
section 2."""

_SCOPED_MIB = 16
"""Part of VMEM that XLA:TPU leaves to operators for what they hold while they run
(xla_tpu_scoped_vmem_limit_kib)."""


def _tpu(
    name: str, terabytes: float, float32: float, matrix: float, link: float, host: float, vmem: int
) -> Device:
    """Makes the Device of a TPU from its peak rates (`_card`) and a core's VMEM in MiB, as by JAX.

    GB/s to the host are those of Austin et al. (2025), section 2. Dots in float32 run in bfloat16
    by default. Vector units do 4,096 operations a cycle each, at the clock of the matrix units'
    peak.
    """
    rates = _card(name, terabytes, float32, matrix, matrix, link, host)
    return dataclasses.replace(
        rates,
        near_bytes=(vmem - _SCOPED_MIB) * 2**20,
        near_bytes_per_second=_VMEM_RATIO * rates.bytes_per_second,
    )


# Dots in float32 run in TF32 from Ampere on; the datasheets' figures with sparsity are halved.
_CARDS: tuple[tuple[str, Device, str], ...] = (
    (r"\bV100", _card("V100", 0.9, 15.7, 15.7, 125, 150, 16), "NVIDIA V100 datasheet (SXM2)"),
    (
        r"\bA100.*80GB",
        _card("A100 80 GB", 2.039, 19.5, 156, 312, 300, 32),
        "NVIDIA A100 datasheet (SXM)",
    ),
    (r"\bA100", _card("A100 40 GB", 1.555, 19.5, 156, 312, 300, 32), "NVIDIA A100 datasheet (SXM)"),
    (
        r"\bRTX A6000",
        _card("RTX A6000", 0.768, 38.7, 77.4, 154.8, 56.25, 32),
        "NVIDIA GA102 whitepaper",
    ),
    (
        r"\bRTX PRO 6000",
        _card("RTX PRO 6000", 1.792, 125, 252, 504, 64, 64),
        "NVIDIA RTX PRO Blackwell whitepaper",
    ),
    (r"\bH100", H100, "NVIDIA H100 datasheet (SXM)"),
    (r"\bH200", _card("H200", 4.8, 67, 494, 989, 450, 64), "NVIDIA H200 datasheet (SXM)"),
    (
        r"\bB200",
        _card("B200", 7.7, 75, 1125, 2250, 900, 64),
        "NVIDIA HGX B200 datasheet, one of eight GPUs",
    ),
    (
        r"\bGB200",
        _card("GB200", 8.0, 80, 1250, 2500, 900, 225),
        "NVIDIA GB200 NVL72 datasheet, one of two GPUs",
    ),
    (r"TPU v5 lite", _tpu("TPU v5e", 0.819, 6, 197, 200, 16, 128), "Google Cloud, TPU v5e"),
    (r"TPU v5", _tpu("TPU v5p", 2.765, 14, 459, 600, 16, 64), "Google Cloud, TPU v5p"),
    (r"TPU v6 lite", _tpu("TPU v6e", 1.64, 7, 918, 400, 32, 128), "Google Cloud, TPU v6e"),
    (r"TPU7x", _tpu("TPU7x", 3.69, 9, 1153, 300, 32, 64), "Google Cloud, TPU7x, one of 2 chiplets"),
)
"""By what JAX's name of a device contains, the first that fits: rates, and where they are from."""

_USUAL = {TPU.name: next(found for _, found, _ in _CARDS if found.name == "TPU v5e")}
"""Platform -> the device whose rates stand for one that is not listed; an H100 for others."""

SOURCES = {found.name: source for _, found, source in _CARDS}
"""A card's name -> the document that its peak rates are from."""


def card_device(kind: str) -> Device | None:
    """The rates of a GPU or TPU by its `device_kind` in JAX; None if the kind is not listed."""
    return next((rates for pattern, rates, _ in _CARDS if re.search(pattern, kind)), None)


def device(target: str, kind: str = "") -> Device:
    """The rates by which operators are priced for a target: "cpu": this machine's, measured; "cuda"
    and "tpu": those listed for `kind`, JAX's name of the device. Where that is "" or not listed,
    the rates are an H100's, or a TPU v5e's.
    """
    if platform(target).has_measured_rates:
        return calibrated_cpu()
    listed, usual = card_device(kind), _USUAL.get(target, H100)
    if kind and listed is None:
        _logger.info("speed of a %s unknown; predicted times are for a %s", kind, usual.name)
    return listed or usual

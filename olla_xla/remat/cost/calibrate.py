"""Rates of this machine's CPU under XLA, measured once by micro-benchmarks and kept in a file."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hlo.files import read_own
from olla_xla.problem.whole_file import keep, user_cache
from olla_xla.remat.cost import cpu_benchmarks
from olla_xla.remat.cost.roofline import Device

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_logger = logging.getLogger("olla_xla")

_VERSION = 7  # of the file; raised when the benchmarks change

_DISTURBED = 0.1
"""Part of the machine's processor time from which on others' work disturbs a benchmark: one core of
two slows products by a fifth, both by half."""
_GLANCE = 0.1  # seconds

LOCK = threading.Lock()  # Two threads that measured at once would measure each other.
_thread = threading.local()


def is_measuring() -> bool:
    """Whether this thread measures the CPU now; it must not plan, as planning waits for that."""
    return getattr(_thread, "measuring", False)


def calibrated_cpu() -> Device:
    """Measured rates of this machine's CPU: from the file of an earlier run, or measured now. Rates
    measured while other processes ran are low; they are measured again once these rest.
    """
    with LOCK:
        return _calibrated()


@functools.cache
def _calibrated() -> Device:
    return kept("cpu", Device, lambda: cpu_benchmarks.measure_cpu())


def kept[Rates: DataclassInstance](
    name: str, kind: type[Rates], measure: Callable[[], Rates]
) -> Rates:
    """Rates of this machine: read from the file `name` in the user's cache, or else measured by
    `measure` and written there. The caller holds LOCK. Rates that other processes disturbed are
    measured again once these rest.
    """
    path = _path(name)
    stored = _read(path, kind)
    if stored is not None:
        rates, disturbed = stored
        if not disturbed or _others(lambda: time.sleep(_GLANCE))[1] > _DISTURBED:
            return rates
    _logger.info("measuring the speed of this machine's CPU, once (some seconds)")
    _thread.measuring = True
    try:
        rates, others = _others(measure)
    finally:
        _thread.measuring = False
    _write(path, rates, disturbed=others > _DISTURBED)
    return rates


def _others[Result](work: Callable[[], Result]) -> tuple[Result, float]:
    """Calls `work`: (its result, part of processor time that others took, or the load average)."""
    before = _processor_seconds()
    own, started = time.process_time(), time.perf_counter()
    result = work()
    passed, own = time.perf_counter() - started, time.process_time() - own
    after = _processor_seconds()
    if before is None or after is None:
        return result, _load()
    return result, (after - before - own) / (passed * (os.cpu_count() or 1))


def _processor_seconds() -> float | None:
    """Processor time of all processes since the machine started, in seconds, without idle time,
    that of waiting, and that of guests, which user time holds; None where it is not told (proc(5)).
    """
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _load() -> float:
    """The load average less 1 for this process, divided by the number of cores; 0 if unknown."""
    if not hasattr(os, "getloadavg"):
        return 0.0
    return max(os.getloadavg()[0] - 1, 0) / (os.cpu_count() or 1)


def _cores() -> int:
    """How many processor cores this process may use, which XLA takes."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _path(name: str) -> Path:
    """Path of a file of rates in the user's cache, by machine, cores and JAX version."""
    import jax

    machine = f"{platform.machine()} {_cores()} {jax.__version__}"
    digest = hashlib.sha256(f"{_VERSION} {machine} {platform.node()}".encode()).hexdigest()[:16]
    return user_cache() / f"{name}-{digest}.json"


def _read[Rates](path: Path, kind: type[Rates]) -> tuple[Rates, bool] | None:
    """(rates, whether other processes disturbed their benchmarks) in a file; None if unreadable."""
    try:
        fields = json.loads(read_own(path))
        return kind(**fields["rates"]), fields["busy"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None  # not there, or not ours: it is measured again


def _write(path: Path, rates: DataclassInstance, *, disturbed: bool) -> None:
    try:
        record = {"rates": dataclasses.asdict(rates), "busy": disturbed}
        keep(path, json.dumps(record).encode() + b"\n")
    except OSError as error:
        _logger.info("the measured speed of the CPU cannot be stored: %s", error)

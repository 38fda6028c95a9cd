"""Memory of this process and its devices: resident memory, allocators, the profiler's peak."""

import ctypes
import importlib.util
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax


def give_memory_back() -> None:
    """Makes malloc return free memory to the system, where it is glibc's, to measure peaks."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, others do not
    if trim is not None:
        trim(0)


def reset_peak() -> bool:
    """Resets this process's peak of resident memory; False where the system does not allow it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def status_bytes(field: str) -> int | None:
    """Returns a field of /proc/self/status, such as "VmHWM", in bytes; None where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(sizes[0]) * 1024 if sizes else None


def device_bytes(device: Any, field: str) -> int | None:
    """Returns a field of a device's memory statistics, such as "bytes_in_use"; None without it."""
    stats = device.memory_stats()
    return None if not stats else stats.get(field)


class DevicePeak:
    """Measures the peak of a device's allocator beyond the bytes in use when it is constructed.
    Allocators keep one peak, which cannot be reset: an earlier peak may have been higher.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._held = device_bytes(device, "bytes_in_use")
        self._before = device_bytes(device, "peak_bytes_in_use")

    def bytes(self) -> int | None:
        """Returns the peak bytes beyond those in use at the start; None unless the peak rose."""
        peak = device_bytes(self._device, "peak_bytes_in_use")
        if peak is None or self._held is None or self._before is None or peak <= self._before:
            return None
        return peak - self._held


def profiled_peak(function: Callable[..., Any], arguments: Callable[[], Any]) -> int | None:
    """Calls a function once under JAX's profiler; returns the most bytes in use on a device.
    `arguments` returns the arguments that it is called with. None without the package xprof, which
    reads the traces, and where one has no memory events, as on CPU.
    """
    if importlib.util.find_spec("xprof") is None:
        return None
    values = arguments()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(function(*values))
        convert = importlib.import_module("xprof.convert.raw_to_tool_data")
        traces = sorted(map(str, Path(folder).rglob("*.xplane.pb")))
        text, _ = convert.xspace_to_tool_data(traces, "memory_profile", {})
    return peak_of(json.loads(text)) if text else None


def peak_of(profile: dict[str, Any]) -> int | None:
    """Returns the largest peak of bytes in use in a MemoryProfile of XProf (JSON); None if none."""
    allocators = profile.get("memoryProfilePerAllocator", {}).values()
    peaks = [
        int(allocator.get("profileSummary", {}).get("peakStats", {}).get("peakBytesInUse", 0))
        for allocator in allocators
    ]
    return max(peaks, default=0) or None

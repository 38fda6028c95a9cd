"""What else would help, in one line."""

from __future__ import annotations

from olla_xla.cli.report.units import megabytes, percent
from olla_xla.tools.remedy import Remedy

__all__ = ["remedy_line"]


def remedy_line(found: Remedy) -> str:
    """What most of the memory is, what recomputation comes to, and what is left where it fails."""
    most = (
        f"{megabytes(found.what_bytes)} of {megabytes(found.total_bytes)} MB at the peak are "
        f"{found.what}"
    )
    if found.helps:
        return (
            f"What would help: {most}; --max_overhead={found.max_overhead:g} plans "
            f"{megabytes(found.bytes)} MB (predicted, {percent(found.overhead, 1)} % more time)."
        )
    left = "a smaller batch, or another model"
    if found.is_state:
        left = "shard them over devices, or keep fewer bytes of each"
    return (
        f"What would help: {most}, and computing things again for up to "
        f"{percent(found.max_overhead, 0)} % more time leaves {megabytes(found.bytes)} MB: {left}."
    )

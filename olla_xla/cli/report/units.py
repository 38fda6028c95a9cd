"""Numbers as text. A MB is 2**20 bytes."""

from __future__ import annotations

__all__ = ["change", "megabytes", "more", "percent", "seconds"]


def megabytes(size: int | float | None, digits: int = 1) -> str:
    """Bytes in MB, without the unit: 1572864 -> "1.5"; "-" for None."""
    return "-" if size is None else f"{size / 2**20:,.{digits}f}"


def change(share: float, digits: int = 1) -> str:
    """By how much of it something grew, with its sign: 0.25 -> "+25.0 %", 0 -> "0.0 %"."""
    text = percent(share, digits)
    return f"+{text} %" if float(text) > 0 else f"{text} %"


def more(size: float, other: float) -> float:
    """By which part of another a size is larger; 0.0 where the other is nothing at all."""
    return size / other - 1 if other else 0.0


def percent(share: float | None, digits: int = 2) -> str:
    """A share of one as a percentage, without the sign: 0.005 -> "0.50"; "-" for None."""
    if share is None:
        return "-"
    text = f"{100 * share:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def seconds(value: float | None) -> str:
    """Seconds, to a tenth: "12.3"; "-" for None."""
    return "-" if value is None else f"{value:,.1f}"

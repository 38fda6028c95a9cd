"""Numbers as text. A MB is 2**20 bytes."""

from __future__ import annotations


def megabytes(size: int | float | None, digits: int = 1) -> str:
    """Bytes in MB, without the unit: 1572864 -> "1.5"; "-" for None."""
    return "-" if size is None else f"{size / 2**20:,.{digits}f}"


def change(share: float, digits: int = 1) -> str:
    """A relative change as a percentage with its sign: 0.25 -> "+25.0 %", 0 -> "0.0 %"."""
    text = percent(share, digits)
    return f"+{text} %" if float(text) > 0 else f"{text} %"


def more(size: float, other: float) -> float:
    """By which fraction of `other` a size exceeds it; negative if smaller, 0.0 if other is 0."""
    return size / other - 1 if other else 0.0


def percent(share: float | None, digits: int = 2) -> str:
    """A fraction in percent, without the percent sign: 0.005 -> "0.50"; "-" for None."""
    if share is None:
        return "-"
    text = f"{100 * share:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def seconds(value: float | None) -> str:
    """Seconds with one decimal: "12.3"; "-" for None."""
    return "-" if value is None else f"{value:,.1f}"

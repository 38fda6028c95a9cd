"""Plans made up for tests of what is said about them."""

from __future__ import annotations

from typing import Any

from olla_xla.problem.plan import Plan

__all__ = ["MB", "made_plan"]

MB = 2**20


def made_plan(**fields: Any) -> Plan:
    """A plan that saves 50 of XLA's 190 predicted MB; `fields` are given other values."""
    given: dict[str, Any] = {
        "module": "jit_step",
        "fingerprint": "f",
        "target": "cpu",
        "order": {"main": ("a",)},
        "offsets": {},
        "xla_bytes": 200 * MB,
        "xla_predicted_bytes": 190 * MB,
        "predicted_bytes": 140 * MB,
        "peak_bytes": 130 * MB,
        "least_peak_bytes": 120 * MB,
        "lower_bound_bytes": 100 * MB,
        "seconds": 3.04,
        "steps": 1234,
        "seed": 7,
    }
    return Plan(**{**given, **fields})

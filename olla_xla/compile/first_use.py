"""The first plan of each kind on a device: its results are compared with XLA's own, once.
On a CPU, this package's tests compare results bit for bit. On other devices they are compared at
first use: the first executable that changes the order, binds results to operands, has clones or
recomputes residuals is run beside XLA's own on copies of the arguments, as with `verify=True`, if
the device's memory allows. The outcome is kept in the user's cache folder, by the device's name and
the version of jaxlib.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jaxlib.version

from hlo.files import read_own
from olla_xla.compile.accounting import output_bytes
from olla_xla.compile.process_memory import device_bytes
from olla_xla.problem.plan import Plan
from olla_xla.problem.whole_file import keep, user_cache

_logger = logging.getLogger("olla_xla")

KINDS = ("order", "bindings", "clones", "residuals")
"""Kinds of what a plan changes."""

SAME, DIFFERENT = "same", "different"
"""Outcomes of a comparison."""


class FirstUse(NamedTuple):
    """Kinds of plan changes (`KINDS`) whose results are to be compared with XLA's own now, on the
    device that `where` names with the version of jaxlib.
    """

    kinds: frozenset[str]
    where: str

    def remember(self, *, same: bool) -> None:
        """Stores in the user's cache whether results with these changes equal XLA's own."""
        outcomes = {kind: SAME if same else DIFFERENT for kind in self.kinds}
        known = verified()
        known[self.where] = known.get(self.where, {}) | outcomes
        try:
            keep(_path(), json.dumps(known, indent=1, sort_keys=True).encode() + b"\n")
        except (OSError, RuntimeError) as error:
            _logger.info("cannot store the result of the comparison on %s: %s", self.where, error)
        if same:
            what = ", ".join(k for k in KINDS if k in self.kinds)
            _logger.info("the first results of %s on %s equal XLA's own", what, self.where)


def kinds(plan: Plan) -> frozenset[str]:
    """Lists the kinds (`KINDS`) of changes that a plan makes: "order" always; "bindings" of results
    to operands' memory, "clones" of instructions, "residuals" of loops recomputed, if it has any.
    """
    changes = {
        "order": True,
        "bindings": plan.aliases or plan.holds,
        "clones": plan.clones,
        "residuals": plan.loops or plan.sunk or plan.joined,
    }
    return frozenset(kind for kind, changed in changes.items() if changed)


def due(plan: Plan, device: Any) -> FirstUse | None:
    """Lists the kinds of changes (`KINDS`) of a plan that no comparison with XLA's own results on
    this device found equal yet; None if there are none.
    """
    where = f"{device.device_kind}, jaxlib {jaxlib.version.__version__}"
    known = verified().get(where, {})
    left = frozenset(kind for kind in kinds(plan) if known.get(kind) != SAME)
    return FirstUse(left, where) if left else None


def lacks_memory(plan: Plan, compiled: jax.stages.Compiled, device: Any) -> str:
    """Says that a device has too little memory to run a plan and XLA's own order in sequence, or
    does not report its memory; "" if it has enough. The arguments are in memory twice, and the
    planned results while XLA's own are computed.
    """
    limit, used = (device_bytes(device, f) for f in ("bytes_limit", "bytes_in_use"))
    if limit is None or used is None:
        return "first results are not compared with XLA's: the device does not report its memory"
    needed = used + max(plan.total_bytes, output_bytes(compiled) + plan.xla_bytes)
    if needed <= limit:
        return ""
    return (
        f"first results are not compared with XLA's own: that takes {needed / 2**20:,.0f} MB, but "
        f"the device has {limit / 2**20:,.0f} MB"
    )


def verified() -> dict[str, dict[str, str]]:
    """Reads the stored outcomes of comparisons with XLA's own results: device and jaxlib -> kind of
    change -> `SAME` or `DIFFERENT`.
    """
    try:
        known = json.loads(read_own(_path()))
    except (OSError, ValueError, RuntimeError):  # RecursionError is a RuntimeError
        return {}
    if not isinstance(known, dict):
        return {}
    return {
        where: {kind: said for kind, said in outcomes.items() if kind in KINDS}
        for where, outcomes in known.items()
        if isinstance(outcomes, dict)
    }


def _path() -> Path:
    return user_cache() / "verified.json"

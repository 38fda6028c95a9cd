"""Buffers that lie where we place them, in a compiled CPU executable (`placement="own"`).
XLA's executable is serialized, its slices are rewritten (`place.executable`), the referee follows
every byte through both (`check.executable.relocation`), and the new one is loaded instead. The
format is internal to XLA: an executable of another version, one that reading and writing would
change, and one with anything unknown in it keep XLA's places, and the reason is told.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
from collections.abc import Mapping
from typing import Any

import jax

from hlo.backend import is_host
from hlo.cpu_executable import CpuExecutable
from hlo.module import HloError
from olla_xla.check.executable.relocation import check_relocated
from olla_xla.compile import extensions
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.compile.jax_private import loaded_again, platform_of
from olla_xla.errors import CheckError, OllaError
from olla_xla.problem.plan import Plan
from olla_xla.problem.plan_parts import Proof

_logger = logging.getLogger("olla_xla")

_TESTED = ("0.12.0",)
"""Versions of jaxlib whose executables are known, without what follows the third number."""

_LEAST_SECONDS = 1.0  # for places, however long the order took

LOSS = 0.005
"""Part of the lifetime peak that places may cost until another order is tried."""


def placed(compiled: jax.stages.Compiled, plan: Plan) -> tuple[jax.stages.Compiled, Plan]:
    """Moves the buffers of a CPU executable to addresses that this package chooses.
    Returns (the new executable, a copy of the plan that says what was done: `placement`,
    `placement_note`, `recovered_bytes`, `proofs`); the same executable where that saves nothing or,
    with a warning, is not possible. `compiled`: runs the plan, at XLA's addresses.
    """
    proofs, moved, saved, note = list(plan.proofs), None, 0, ""
    try:
        moved = _moved(compiled, _how(plan, proofs))
        if moved is not None:
            saved = assigned_bytes(compiled) - assigned_bytes(moved)
        if saved < 0:
            raise CheckError(f"olla_xla's addresses take {-saved:,} bytes more than XLA's")
    except (OllaError, HloError, jax.errors.JaxRuntimeError) as error:
        moved, saved, note = None, 0, " ".join(str(error).split())
        if isinstance(error, CheckError):
            note = f"olla_xla's check failed: {note}"
        _logger.warning("%s: buffers keep XLA's addresses: %s", plan.module, note)
    plan = dataclasses.replace(
        plan,
        placement="xla" if moved is None else "own",
        placement_note=note,
        recovered_bytes=saved,
        proofs=tuple(proofs),
    )
    return moved or compiled, plan


def _how(plan: Plan, proofs: list[Proof]) -> dict[str, Any]:
    """Returns how addresses are chosen, as arguments of `extensions.own_places`; {}: by search.
    An integer program chooses them where one chose the order, in what is left of the time. For a
    stored plan, which has a proof of addresses, search finds them again unless the program did.
    `proofs`: the plan's, changed in place: that of addresses is removed.
    """
    placed = [proof for proof in proofs if proof.what == "places"]
    if not proofs or (placed and not placed[0].message.startswith("by ilp")):
        return {}
    proofs[:] = [proof for proof in proofs if proof.what == "order"]
    return {
        "time_limit": max(plan.time_limit - plan.seconds, _LEAST_SECONDS),
        "backend": proofs[0].backend,
        "gap": plan.tolerance,
        "on_proof": proofs.append,
    }


def _moved(compiled: jax.stages.Compiled, how: Mapping[str, Any]) -> jax.stages.Compiled | None:
    """Returns the executable with its buffers moved, checked and loaded; None if nothing is gained.
    `how`: further arguments of `extensions.own_places`. Raises OllaError or HloError if it cannot
    be read or changed, CheckError if our checker rejects the new addresses (a bug).
    """
    if not is_host(platform_of(compiled)):
        raise OllaError("buffer addresses can be changed only in executables for a CPU")
    version = importlib.metadata.version("jaxlib")
    if ".".join(version.split(".")[:3]) not in _TESTED:
        raise OllaError(f"olla_xla cannot change executables of jaxlib {version}")
    loaded = compiled.runtime_executable()
    if loaded is None:
        raise OllaError("JAX gives no access to XLA's executable")
    executable = CpuExecutable(loaded.serialize())
    unchanged = [[a.slice for a in thunk.accesses] for thunk in executable.flat]
    if executable.relocated(unchanged, {}, {}) != executable.data:
        raise OllaError("olla_xla cannot write this executable as XLA does")
    data = extensions.own_places(executable, **how)
    if data == executable.data:
        return None
    check_relocated(executable, CpuExecutable(data))  # what is judged is what is loaded
    return loaded_again(compiled, data)

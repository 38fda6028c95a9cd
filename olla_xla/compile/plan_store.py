"""Reuse of plans: what a plan depends on, its digest, and where it is kept.

A function lowered again to the same StableHLO, with the same options and devices, gets its earlier
plan without a search. Its module gets a token made from the plan's key, so that JAX's persistent
compilation cache, if it is on, serves the planned executable. Plans are then also kept on disk, in
a folder of that cache.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from olla_xla.compile import plan_files
from olla_xla.errors import PlanFileError
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import VERSION, Plan

_FORMAT = 8
"""Part of every key, of plans and in JAX's persistent cache; raised when plans of older versions
must not be used again. Before 4, in-place results could overwrite operands that were still read.
Before 6, the referee's digests depended on the channel ids of collectives. Before 7, kernels could
have other memory patterns than in XLA's own order, and round otherwise. Before 8, the referee's
digests did not hold how arguments lie."""

_FOLDER = "olla_xla"
"""Folder of plans in the directory of JAX's persistent compilation cache."""

_COMPILE_SETTINGS = (
    "jax_optimization_level",
    "jax_memory_fitting_level",
    "jax_compiler_enable_remat_pass",
)
"""JAX settings that are passed to XLA beside the module."""

_MOST_ACCEPTED = 8
"""Digests of executables that are kept with a plan."""

_logger = logging.getLogger("olla_xla")


def plan_key(
    program: bytes,
    environment: str,
    compiler_options: Mapping[str, Any] | None,
    options: PlanOptions,
) -> str:
    """The key under which a plan is stored: a digest of program, compiler, options and devices.

    `program` is the lowered module's bytecode (stablehlo.py). A key that fails to tell two modules
    apart costs time only: a plan carries the fingerprint of its module and is refused for another.
    """
    config: Any = jax.config
    parts = (
        _FORMAT,
        VERSION,  # plan files of other versions are not found
        jax.__version__,
        importlib.metadata.version("jaxlib"),
        os.environ.get("XLA_FLAGS", ""),
        [getattr(config, name, None) for name in _COMPILE_SETTINGS],
        environment,
        sorted((compiler_options or {}).items()),
        options,
    )
    digest = hashlib.sha256(repr(parts).encode())
    digest.update(program)
    return digest.hexdigest()[:32]


def plan_digest(plan: Plan) -> str:
    """Digest of a plan's module and of all changes to it: 32 hex digits."""
    written = [_FORMAT, plan.fingerprint, dict(plan.order), dict(plan.aliases), dict(plan.holds)]
    written += [plan.clones, plan.loops, plan.sunk, plan.joined]
    text = json.dumps(written, sort_keys=True)
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
        self._said = False
        self._plans: collections.OrderedDict[str, plan_files.StoredPlan] = collections.OrderedDict()

    def load(self, key: str) -> Plan | None:
        """The plan kept under `key`, or None."""
        stored = self._load(key)
        return None if stored is None else stored.plan

    def accepted(self, key: str) -> tuple[str, ...]:
        """Digests of executables of the plan kept under `key` that the referee has accepted."""
        stored = self._load(key)
        return () if stored is None else stored.accepted

    def _load(self, key: str) -> plan_files.StoredPlan | None:
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        stored = self._read(key)
        if stored is not None:
            self._keep(key, stored)
        return stored

    def save(self, key: str, plan: Plan, accepted: str = "") -> None:
        """Keeps `plan` under `key`, in memory and, given a directory, in a file.

        Args:
          key: by `plan_key`. plan: to keep.
          accepted: digest of an executable that the referee has accepted, or "".
        """
        known = self._load(key) if accepted else None
        digests = known.accepted if known is not None and known.plan == plan else ()
        digests = tuple(dict.fromkeys((*digests, accepted)))[-_MOST_ACCEPTED:] if accepted else ()
        stored = plan_files.StoredPlan(plan, digests)
        self._keep(key, stored)
        self._write(key, stored)

    def drop(self, key: str) -> None:
        """Forgets the plan kept under `key`, in its file too."""
        with self._lock:
            self._plans.pop(key, None)
        path = self._path(key)
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    def clear(self) -> None:
        """Forgets the plans in memory; files stay."""
        with self._lock:
            self._plans.clear()

    def _keep(self, key: str, stored: plan_files.StoredPlan) -> None:
        with self._lock:
            self._plans[key] = stored
            self._plans.move_to_end(key)
            while len(self._plans) > self._capacity:
                self._plans.popitem(last=False)

    def _read(self, key: str) -> plan_files.StoredPlan | None:
        path = self._path(key)
        if path is None or not os.path.exists(path):  # also false without permission
            return None
        try:
            return plan_files.read_stored(path)
        except PlanFileError as error:
            _logger.warning("%s; this run plans again", error)
            return None

    def _write(self, key: str, stored: plan_files.StoredPlan) -> None:
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            plan_files.write(path, stored.plan, stored.accepted)
        except OSError as error:
            if not self._said:
                self._said = True
                _logger.warning(
                    "the plan of %s cannot be stored for reuse: %s", stored.plan.module, error
                )

    def _path(self, key: str) -> Path | None:
        return None if self._directory is None else self._directory / f"{key}{plan_files.SUFFIX}"


def process_store() -> PlanStore:
    """The PlanStore of this process; on disk too if JAX's persistent compilation cache is on."""
    return _store(stored_folder())


def stored_folder() -> Path | None:
    """Where this process keeps plans; None where JAX's persistent compilation cache is off."""
    config: Any = jax.config
    directory = config.jax_compilation_cache_dir
    # JAX takes remote directories too, which only its own file layer can write to.
    if not directory or not config.jax_enable_compilation_cache or "://" in directory:
        return None
    return Path(directory) / _FOLDER


def is_filled() -> bool:
    """Whether the plan folder in JAX's compilation cache holds a plan, of any process or function.

    False where the persistent cache is off or remote.
    """
    folder = stored_folder()
    return folder is not None and next(folder.glob(f"*{plan_files.SUFFIX}"), None) is not None


@functools.cache
def _store(directory: Path | None) -> PlanStore:
    return PlanStore(directory)

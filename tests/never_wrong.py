"""Steps that were planned wrong once, and their relatives: jit's results, bit for bit.

    uv run python -m tests.never_wrong lstm llama
    uv run --with transformers==4.57.6 python -m tests.never_wrong flax

Each is planned and run for two steps, its state donated. `lstm` are 52 unrolled LSTMs, `llama` 320
Llamas without scan, `flax` nine models of the library transformers, by
default and with a step limit. Exit code 1 if a result differs,
a total is larger than jit's, or a plan fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import olla_xla
from olla_xla.compile.accounting import assigned_bytes
from tests.support import flax_transformers, unrolled_nets

_STEPS = 2


@dataclasses.dataclass(frozen=True)
class Case:
    """A step and how it is planned; steps of one `name` differ in their arrays alone."""

    name: str
    build: Callable[..., Any]
    seed: int
    options: dict[str, Any]


def lstms() -> Iterator[Case]:
    """The LSTM of the first report, its sizes, seeds and limits varied."""
    sizes = [(24, 32, 64, 600), (12, 64, 32, 32), (12, 32, 64, 600), (8, 64, 64, 64)]
    sizes += [(16, 16, 32, 256), (24, 64, 64, 64), (6, 32, 128, 512), (20, 8, 64, 1000)]
    sizes += [(12, 32, 32, 128), (3, 64, 64, 600), (16, 64, 128, 128), (32, 32, 32, 32)]
    sizes += [(10, 128, 64, 256)]
    limits: list[dict[str, Any]] = [
        {}, {"time_limit": 2}, {"step_limit": 100_000}, {"step_limit": 20_000, "max_overhead": 0.1},
    ]  # fmt: skip
    for size, (k, limit) in itertools.product(sizes, enumerate(limits)):
        yield Case(f"lstm {size}", functools.partial(unrolled_nets.lstm, *size), k, limit)


def llamas() -> Iterator[Case]:
    """Blocks of Llama, with and without a step limit."""
    activations = {"silu": jax.nn.silu, "gelu": jax.nn.gelu}
    limits: list[dict[str, Any]] = [{"time_limit": 2}, {"step_limit": 100_000}]
    for layers, name, width in itertools.product((1, 2, 3, 4), activations, (64, 128)):
        build = functools.partial(unrolled_nets.llama, layers, activations[name], width)
        for seed, limit in itertools.product(range(10), limits):
            yield Case(f"llama {layers} {name} {width}", build, seed, limit)


def transformers() -> Iterator[Case]:
    """Models of a public library."""
    for name in flax_transformers.MODELS:
        build = functools.partial(flax_transformers.transformer, name)
        for limit in ({}, {"step_limit": 100_000}):
            yield Case(f"flax {name}", build, 0, limit)


GROUPS = {"lstm": lstms, "llama": llamas, "flax": transformers}


class Reference:
    """Steps of one name as `jax.jit` runs them, compiled once."""

    def __init__(self) -> None:
        self._name, self._jitted = "", None

    def compiled(self, case: Case, step: Any, arguments: Any) -> Any:
        """XLA's executable."""
        if case.name != self._name:
            jax.clear_caches()
            self._jitted = jax.jit(step, donate_argnums=0).lower(*arguments).compile()
            self._name = case.name
        return self._jitted


def outcome(case: Case, reference: Reference) -> dict[str, Any]:
    """What came of one case."""
    step, state, batch = case.build(seed=case.seed)
    plain = reference.compiled(case, step, (state, batch))
    started = time.monotonic()
    planned: Any = olla_xla.plan(step, donate_argnums=0, seed=case.seed, **case.options)
    compiled = planned.lower(state, batch).compile()
    seconds = time.monotonic() - started
    expected, got = (jax.tree.map(jnp.array, state) for _ in range(2))
    differ = 0
    for _ in range(_STEPS):
        expected, value = plain(expected, batch)
        got, planned_value = compiled(got, batch)
        differ += _differences((expected, value), (got, planned_value))
    xla, ours = assigned_bytes(plain), assigned_bytes(compiled)
    plan = compiled.plan if compiled.planned else None
    kind = "wrong" if differ else "larger" if ours > xla else "identical"
    return {
        "case": case.name,
        "seed": case.seed,
        "options": case.options,
        "kind": kind,
        "differ": differ,
        "planned": compiled.planned,
        "reason": compiled.reason,
        "xla_bytes": xla,
        "bytes": ours,
        "bindings": sum(map(len, plan.aliases.values())) if plan else 0,
        "seconds": round(seconds, 2),
    }


def _differences(expected: Any, got: Any) -> int:
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True)
    return sum(_bits(a) != _bits(b) for a, b in pairs)


def _bits(leaf: Any) -> bytes:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the groups, prints a line for each step and a sum for each group."""
    parser = argparse.ArgumentParser(description="Steps that were planned wrong once.")
    parser.add_argument("groups", nargs="+", choices=GROUPS)
    parser.add_argument("--out", type=Path, help="file of rows (JSON lines) to write")
    given = parser.parse_args(argv)
    failed = 0
    for group in given.groups:
        reference, rows = Reference(), []
        for case in GROUPS[group]():
            row = outcome(case, reference)
            rows.append(row)
            print(json.dumps(row), flush=True)
            if given.out:
                with given.out.open("a") as out:
                    out.write(json.dumps(row) + "\n")
        bad = sum(row["kind"] != "identical" for row in rows)
        smaller = sum(row["bytes"] < row["xla_bytes"] for row in rows)
        bound = sum(row["bindings"] for row in rows)
        print(
            f"{group}: {len(rows)} cases, {len(rows) - bad} identical and none larger, {bad} not; "
            f"{smaller} smaller, {bound} results bound to operands",
            flush=True,
        )
        failed += bad
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""One process of a job; run as a program. Prints a line of JSON for each case."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import olla_xla
from hlo.module import module_from_bytes
from olla_xla import planner, version
from olla_xla.compile import agreement, compiles, together
from olla_xla.compile.accounting import final_module
from olla_xla.compile.agreement import Agreement, KeyValues
from olla_xla.compile.jax_private import distributed_client
from olla_xla.compile.plan_store import process_store
from olla_xla.errors import PlanFileError

_WIDTH, _BRANCHES, _ROWS = 64, 6, 512
_STEPS = 2
_READY_SECONDS = 60.0
"""How long a process waits for the others before each case, so that none is still in the last."""


def _step(scale: float) -> Callable[..., Any]:
    """Momentum on branches that share a sharded batch; each scale is another program.

    Every branch gathers its weights and has large temporaries, of which XLA's order for a CPU keeps
    those of all branches at once, however many devices there are.
    """

    def step(params: Any, moments: Any, x: jax.Array) -> Any:
        hidden = [jnp.tanh((scale * x) @ w) for w in params]
        gradient = [h.T @ (h * h) for h in hidden]
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradient)
        params = jax.tree.map(lambda p, m: p - 0.01 * m, params, moments)
        return params, moments, sum(g.mean() for g in gradient)

    return step


def _arguments() -> Any:
    """Fresh ones, the same in every process, each with its part."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d", None))
    r = np.random.default_rng(0)

    def made(*shape: int) -> jax.Array:
        value = r.standard_normal(shape, np.float32) * 0.1
        return jax.make_array_from_callback(shape, sharding, lambda index: value[index])

    params = [made(_WIDTH, _WIDTH) for _ in range(_BRANCHES)]
    return params, jax.tree.map(lambda a: a * 0, params), made(_ROWS, _WIDTH)


def _trained(function: Callable[..., Any]) -> str:
    """Digest of this process's part of what some steps give."""
    params, moments, x = _arguments()
    digest = hashlib.sha256()
    for _ in range(_STEPS):
        params, moments, value = function(params, moments, x)
        for leaf in jax.tree.leaves((params, moments, value)):
            for shard in leaf.addressable_shards:
                digest.update(np.asarray(shard.data).tobytes())
    return digest.hexdigest()


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> None:
        raise error

    return function


def _object(*_: Any) -> str:
    return "olla_xla's check failed: as it was told to"


def _troubles() -> dict[str, list[tuple[Any, str, Any]]]:
    """By name, the attributes that are replaced while it lasts."""
    spoilt = _raise(ZeroDivisionError("as it was told to"))
    return {
        "objects": [(compiles.Compiles, "_objection", _object)],
        "fails": [(planner, "plan_module", spoilt), (planner, "apply_plan", spoilt)],
        "spoilt": [(together.plan_file, "loads", _raise(PlanFileError("the plan is spoilt")))],
        "interrupted": [(planner, "apply_plan", _raise(KeyboardInterrupt()))],
        "silent": [(Agreement, "_beat", lambda _: None), (planner, "apply_plan", _sleep)],
        "killed waiting": [(Agreement, "offered", _later(_die))],
        "killed before its vote": [(Agreement, "settle", _die)],
        "killed planning": [(planner, "plan_module", _die)],
    }


def _sleep(*_: Any) -> None:
    _miss_the_others()
    raise TimeoutError("it slept")


def _later(then: Callable[..., Any]) -> Callable[..., Any]:
    """What is asked without waiting is still answered."""
    own = Agreement.offered

    def offered(agreement: Agreement, wait: bool = True) -> bytes | None:
        return then() if wait else own(agreement, False)

    return offered


TROUBLES = ("late", "a little late", "jit", "program", "version", *_troubles())
"""What can happen to a process."""


def _miss_the_others() -> None:
    """Waits until another process has come to a plan, and left."""
    store, other = KeyValues(distributed_client()), 1 if jax.process_index() == 0 else 0
    for there in (True, False):
        while bool(store.under(f"olla_xla/at/{other}")) is not there:
            time.sleep(0.1)


@contextlib.contextmanager
def _in_trouble(name: str) -> Iterator[None]:
    """Makes this process fail in the named way within the block."""
    if name == "a little late":
        time.sleep(0.4 * float(os.environ["OLLA_XLA_PATIENCE"]))
    if name == "late":
        _miss_the_others()
    other = {**version.versions(), "jax": "0.11.2"}
    another = [(jax, "__version__", "0.11.2"), (agreement, "versions", lambda: other)]
    replaced = another if name == "version" else _troubles().get(name, [])
    with contextlib.ExitStack() as stack:
        for where, what, value in replaced:
            stack.enter_context(mock.patch.object(where, what, value))
        yield


_searches: list[int] = []


def _count_searches() -> None:
    search = planner.plan_module

    def counted(*args: Any, **kwargs: Any) -> Any:
        _searches.append(1)
        return search(*args, **kwargs)

    planner.plan_module = counted


def _case(number: int, trouble: str, options: dict[str, Any], kills: bool) -> dict[str, Any]:
    """Plans one step, and runs it where nobody dies."""
    _searches.clear()
    scale = 1 + number / 64
    function = _step(-scale if trouble == "program" else scale)
    plain = jax.jit(function, donate_argnums=(0, 1))
    ways = dict(options, donate_argnums=(0, 1))
    planned: Any = plain if trouble == "jit" else olla_xla.plan(function, **ways)
    started = time.monotonic()
    with _in_trouble(trouble), contextlib.suppress(KeyboardInterrupt):
        planned.lower(*_arguments()).compile()
    seconds = time.monotonic() - started
    compiled = planned.lower(*_arguments()).compile()  # the same; interrupted, what was decided
    order = json.dumps(module_from_bytes(final_module(compiled)).order, sort_keys=True)
    plan = getattr(compiled, "plan", None)
    result = {
        "planned": getattr(compiled, "planned", False),
        "reason": getattr(compiled, "reason", ""),
        "order": hashlib.sha256(order.encode()).hexdigest(),
        "xla_bytes": plan and plan.xla_bytes,
        "bytes": plan and plan.assigned_bytes,
        "seconds": round(seconds, 2),
    }
    if not kills:
        # As often in every process: they wait for each other in every step.
        results = {_trained(compiled), _trained(planned), _trained(plain)}
        result["same"] = len(results) == 1
        if trouble != "jit":  # What was agreed holds, whatever a process still knows of it.
            process_store().clear()
            again = olla_xla.plan(function, **ways).lower(*_arguments()).compile()
            result["again"] = again.planned
        if result["planned"]:
            given = olla_xla.plan(function, plan=plan, donate_argnums=(0, 1))
            result["given"] = given.lower(*_arguments()).compile().planned
    return {**result, "searches": len(_searches)}


def main(me: int, count: int, address: str, cases: list[Any], options: dict[str, Any]) -> None:
    """Runs the cases one after the other.

    Args:
      me, count, address: this process's number, how many there are, and where they meet.
      cases: (number, trouble of this process or "", whether a process dies) of each.
      options: of `olla_xla.plan`.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, count, me, heartbeat_timeout_seconds=600)
    _count_searches()
    store = KeyValues(distributed_client())
    for number, trouble, kills in cases:
        _meet(store, f"ready/{number}", me, count, _READY_SECONDS)
        print(json.dumps(_case(number, trouble, options, kills)), flush=True)
    # The first process holds the store, so it goes last; JAX's own shutdown waits for the dead.
    _meet(store, "done", me, count, 5 * (me == 0))
    sys.stderr.flush()
    os._exit(0)


def _meet(store: KeyValues, where: str, me: int, count: int, seconds: float) -> None:
    """Announces this process at a meeting point, and waits up to `seconds` for all the others."""
    store.put(f"{where}/{me}", b"")
    end = time.monotonic() + seconds
    while len(store.under(where)) < count and time.monotonic() < end:
        time.sleep(0.05)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

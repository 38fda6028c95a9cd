"""Processes of one JAX job on this machine's CPU, joined by gloo; run as a program, one of them.

`run` starts them and reads what each prints: a line of JSON.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time

WIDTH, LAYERS, ROWS = 64, 4, 32
_LIMIT = 200


def run(count, environment=None, each=None, **options):
    """Runs `count` processes; returns (exit status, last line of JSON or None, stderr) of each.

    Args:
      environment: variables for all. each: of some, by process number.
      options: of every process, see `main`; those in `each` win.
    """
    with socket.socket() as s:
        s.bind(("localhost", 0))
        address = f"localhost:{s.getsockname()[1]}"
    processes = []
    for k in range(count):
        own = {"address": address, "count": count, "me": k, **options, **(each or {}).get(k, {})}
        variables = {**os.environ, **(environment or {}), **own.pop("environment", {})}
        variables.pop("XLA_FLAGS", None)
        command = [sys.executable, "-m", "tests.support.cluster", json.dumps(own)]
        processes.append(
            subprocess.Popen(
                command, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=_LIMIT)
            lines = [line for line in out.splitlines() if line.startswith("{")]
            found.append((process.returncode, json.loads(lines[-1]) if lines else None, err))
    finally:
        for process in processes:
            process.kill()
    return found


def step(params, moments, x):
    import jax
    import jax.numpy as jnp

    def loss(params):
        y = x
        for a, b in params:
            h = jax.nn.gelu(y @ a)
            y = y + (h * jnp.tanh(h)) @ b
        return (y**2).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradient)
    return jax.tree.map(lambda p, m: p - 0.01 * m, params, moments), moments, value


def arguments(jax, scale=1.0):
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d", None))
    r = np.random.default_rng(0)

    def made(*shape):
        value = r.standard_normal(shape, np.float32) * scale * 0.1
        return jax.make_array_from_callback(shape, sharding, lambda index: value[index])

    params = [(made(WIDTH, 4 * WIDTH), made(4 * WIDTH, WIDTH)) for _ in range(LAYERS)]
    return params, jax.tree.map(lambda a: a * 0, params), made(ROWS, WIDTH)


def trained(jax, function):
    """Bits of this process's part of the results of three steps."""
    import hashlib

    import numpy as np

    params, moments, x = arguments(jax)
    digest = hashlib.sha256()
    for _ in range(3):
        params, moments, value = function(params, moments, x)
        for leaf in jax.tree.leaves((params, moments, value)):
            for shard in leaf.addressable_shards:
                digest.update(np.asarray(shard.data).tobytes())
    return digest.hexdigest()


def main(me, count, address, late=0.0, program=0, version="", trouble="", **options):
    """One process.

    Args:
      me, count, address: its number, how many there are, and where they meet.
      late: seconds that it comes late to the plan. program: another number is another program.
      version: of jax, as it shall say it is.
      trouble: what happens to it: see `_spoil`.
      options: of `olla_xla.plan`.
    """
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, count, me, heartbeat_timeout_seconds=600)
    import olla_xla

    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    searches = _counted()
    expected = trained(jax, jax.jit(step, donate_argnums=(0, 1)))
    function = step
    if program:

        def function(params, moments, x):
            return step(params, moments, x * (1.0 + program / 8))

        function.__name__ = "step"
    if version:
        jax.__version__ = version
    _spoil(trouble)
    time.sleep(late)
    started = time.monotonic()
    planned = olla_xla.plan(function, donate_argnums=(0, 1), **options)
    compiled = planned.lower(*arguments(jax)).compile()
    took = time.monotonic() - started
    plan = compiled.plan
    result = {
        "planned": compiled.planned,
        "reason": compiled.reason,
        "xla": plan and plan.xla_bytes,
        "assigned": plan and plan.assigned_bytes,
        "order": plan and plan.order,
        "searches": len(searches),
        "seconds": round(took, 2),
    }
    if not program:
        result["same"] = trained(jax, compiled) == expected
        result["called"] = trained(jax, planned) == expected
    print(json.dumps(result), flush=True)


def _counted():
    from olla_xla import planner

    searches, search = [], planner.plan_module

    def counted(*args, **kwargs):
        searches.append(1)
        return search(*args, **kwargs)

    planner.plan_module = counted
    return searches


def _spoil(trouble):
    """Has something go wrong in this process."""
    from olla_xla import planner
    from olla_xla.compile import agreement, compiles

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    if trouble == "killed while planning":
        planner.plan_module = die
    elif trouble == "killed while writing":
        planner.apply_plan = die
    elif trouble == "killed before its vote":
        agreement.Agreement.settle = die
    elif trouble == "referee objects":
        compiles.Compiles._objection = lambda *_: "the referee objects: a test"
    elif trouble == "fails":
        def fail(*_, **__):
            raise ZeroDivisionError("spoilt")

        planner.plan_module = planner.apply_plan = fail
    elif trouble == "silent":
        agreement.Agreement._show = lambda *_: time.sleep(1)
        agreement.Agreement.settle = lambda *_: time.sleep(600)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

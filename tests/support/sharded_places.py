"""Sharded steps whose buffers we place, on 8 devices of this machine's CPU; run as a program.

Prints a line of JSON for each: its placement, totals, and whether three runs gave jit's bits.
"""

import functools
import json

from tests.support import sharded  # sets JAX's platform and devices

import jax  # isort: skip
import jax.numpy as jnp  # isort: skip
import numpy as np  # isort: skip

import olla_xla  # isort: skip


def unrolled(params, moments, x):
    """The layers of `sharded.step` one after the other, without a loop."""

    def loss(params):
        y = x
        for k in range(sharded.LAYERS):
            y, _ = sharded._block(y, jax.tree.map(lambda w, k=k: w[k], params))
        return jnp.mean(y * y)

    return sharded.descend(loss, params, moments)


def main():
    for step in (sharded.step, unrolled):
        jit = jax.jit(step, donate_argnums=(0, 1))
        make = functools.partial(
            olla_xla.plan, step, donate_argnums=(0, 1), time_limit=20, step_limit=20_000
        )
        own, xla = make(placement="own"), make()
        ours, theirs = sharded.arguments(), sharded.arguments()
        same = True
        for _ in range(3):
            found, expected = own(*ours), jit(*theirs)
            pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
            same &= all(np.array_equal(a, b) for a, b in pairs)
            ours, theirs = (*found[:2], ours[2]), (*expected[:2], theirs[2])
        plan = own.plans[0]
        other = xla.lower(*ours).compile().plan
        row = {
            "same": bool(same),
            "placement": plan.placement,
            "note": plan.placement_note,
            "own": plan.assigned_bytes,
            "xla": other.assigned_bytes,
            "bound": plan.lower_bound_bytes,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

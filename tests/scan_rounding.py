"""Scans of products and sums: whatever their loops do without, jit's results, bit for bit.

    uv run python -m tests.scan_rounding --first=0 --seconds=600

LLVM rounds a product that is added to something once or twice, as it sees fit for the whole code
of a fusion; so what is computed again may differ though it is the same expression. Each seed is a
layer of random arithmetic, scanned; every choice of stacks that the choices has is compiled,
optimised, and run. Exit code 1 if one differs, or if the referee refuses it.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.random_programs.arithmetic import OPERATIONS, SIZES, arithmetic_layer
from benchmarks.rewritten import compile_rewritten
from olla_xla.check.executable import check_rewrite
from olla_xla.errors import CheckError
from tests.support.compiles import xla_schedule
from tests.support.rates import priced_choices


@dataclasses.dataclass(frozen=True)
class Layers:
    """A scan over layers: operations with the numbers of what they read, and how it is scanned."""

    operations: tuple[tuple[str, int, int, int], ...]
    rows: int
    width: int
    layers: int
    unroll: int
    reverse: bool

    def step(self, weights: Any, x: Any) -> Any:
        """Gradients and loss."""

        def layer(h: Any, w: Any) -> Any:
            operations = ((name, reads) for name, *reads in self.operations)
            return arithmetic_layer(operations, h, w), None

        def loss(weights: Any, x: Any) -> Any:
            h, _ = jax.lax.scan(layer, x, weights, unroll=self.unroll, reverse=self.reverse)
            return jnp.mean(h * h)

        value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(weights, x)
        return gradients, value

    def arguments(self) -> tuple[Any, Any]:
        """Weights and input."""
        keys = jax.random.split(jax.random.key(0), 2)
        shape = self.layers, self.width, self.width
        weights = jax.random.normal(keys[0], shape) / self.width**0.5
        return weights, jax.random.normal(keys[1], (self.rows, self.width))


def drawn(seed: int) -> Layers:
    """The scan of a seed."""
    pick = random.Random(seed)
    names = [*OPERATIONS, "product", "thrice"]
    operations = tuple(
        (pick.choice(names), *(pick.randrange(100) for _ in range(3)))
        for _ in range(pick.randint(3, 9))
    )
    unroll, reverse = pick.choice([1, 1, 1, 2]), pick.random() < 0.2
    return Layers(operations, *pick.choice(SIZES), unroll, reverse)


def outcomes(layers: Layers) -> list[str]:
    """What came of each choice: "same", "differs", or what the referee says."""
    arguments = layers.arguments()
    lowered = jax.jit(layers.step).lower(*arguments)
    expected = _bits(lowered.compile()(*arguments))
    module = xla_schedule(lowered)
    choices = priced_choices(module)
    found = []
    for k in range(len(choices)):
        data = choices.choice(k).module.data
        try:
            check_rewrite(module, data, "cpu", loops=True)
        except CheckError as error:
            found.append(str(error))
            continue
        compiled = compile_rewritten(lowered, lambda _, data=data: data)
        found.append("same" if _bits(compiled(*arguments)) == expected else "differs")
    return found


def _bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs seeds, one after the other, and prints what is not the same."""
    parser = argparse.ArgumentParser(description="Scans of products and sums, bit for bit.")
    parser.add_argument("--first", type=int, default=0, help="seed to begin with")
    parser.add_argument("--seconds", type=float, default=600.0, help="to go on for")
    given = parser.parse_args(argv)
    until, seed, choices, bad = time.monotonic() + given.seconds, given.first, 0, 0
    while time.monotonic() < until:
        found = outcomes(drawn(seed))
        choices += len(found)
        bad += sum(one != "same" for one in found)
        for k, one in enumerate(found):
            if one != "same":
                print(f"seed {seed}, choice {k}: {one}", flush=True)
        seed += 1
        if seed % 20 == 0:
            jax.clear_caches()
            print(f"{seed - given.first} scans, {choices} choices, {bad} not the same", flush=True)
    print(f"{seed - given.first} scans, {choices} choices, {bad} not the same", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

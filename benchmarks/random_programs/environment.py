"""The weights, random keys and callbacks that operators of a random graph use."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from benchmarks.random_programs.spec import Node


@dataclasses.dataclass
class Environment:
    """Weights and random numbers of one trace.

    Attributes:
      weights: square matrices, at least one. key: of all random numbers.
      operators: by name. numbers: one for each random draw and each callback.
      jitted: functions that are called again, by what is in them.
    """

    weights: Sequence[Any]
    key: Any
    operators: dict[str, Operator]
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    jitted: dict[Any, Callable[..., Any]] = dataclasses.field(default_factory=dict)

    def weight(self, k: int) -> Any:
        """A weight by number."""
        return self.weights[k % len(self.weights)]

    def draw(self) -> Any:
        """A key nothing else draws from."""
        return jax.random.fold_in(self.key, next(self.numbers))

    def run(self, nodes: Sequence[Node], values: Sequence[Any]) -> Any:
        """The last value of the nodes of an inner graph."""
        return run_nodes(self, nodes, values)[-1]


Operator = Callable[[Environment, Node, Sequence[Any]], Sequence[Any]]
"""(environment, node, three operands) -> new values, of the operands' shape and type."""


def run_nodes(env: Environment, nodes: Sequence[Node], values: Sequence[Any]) -> list[Any]:
    """All values after running the nodes, in order."""
    pool = list(values)
    for node in nodes:
        reads = node.reads or (-1,)
        operands = [pool[reads[k % len(reads)] % len(pool)] for k in range(max(3, len(reads)))]
        made = env.operators[node.op](env, node, operands)
        pool += [one.reshape(pool[0].shape).astype(pool[0].dtype) for one in made]
    return pool

"""Recomputation put into a step from outside: `jax.checkpoint`, or `olla_xla.sublinear`.

`jax.checkpoint` with each policy of JAX that takes no arguments, around the whole loss or around
the bodies of scans. The code of the step stays as it is: `jax.grad`, `jax.value_and_grad` and
`jax.lax.scan` are replaced while it is traced.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax

from olla_xla.segments.transform import sublinear

POLICIES = (
    "everything_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "nothing_saveable",
)
"""Names in `jax.checkpoint_policies`, by how much they keep."""


@contextlib.contextmanager
def checkpointed_loss(policy: str) -> Iterator[list[Any]]:
    """Context manager: `jax.grad`, `jax.value_and_grad` of f differentiate `jax.checkpoint(f)`.
    Yields a list that gets each function f. `policy`: a name in `jax.checkpoint_policies`.
    """
    chosen = getattr(jax.checkpoint_policies, policy)
    with wrapped_loss(lambda fun: jax.checkpoint(fun, policy=chosen)) as functions:
        yield functions


@contextlib.contextmanager
def checkpointed_scans(policy: str) -> Iterator[list[Any]]:
    """Context manager in which `jax.lax.scan` applies `jax.checkpoint` to each scan's body.
    Yields a list that gets each such body. `policy`: a name in `jax.checkpoint_policies`.
    """
    scan, chosen = jax.lax.scan, getattr(jax.checkpoint_policies, policy)
    bodies: list[Any] = []

    def wrapped(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bodies.append(f)
        # A scan's body is compiled once, so no common subexpressions join the two passes.
        return scan(jax.checkpoint(f, policy=chosen, prevent_cse=False), *args, **kwargs)

    with mock.patch.object(jax.lax, "scan", wrapped):
        yield bodies


@contextlib.contextmanager
def checkpointed_segments(policy: str) -> Iterator[list[Any]]:
    """Context manager in which `jax.lax.scan` runs a scan over segments, each a scan of its own.
    Segments and bodies run under `jax.checkpoint`: of n iterations about 2 sqrt(n) are kept. Scans
    of a prime number of iterations, or of one, stay as they are. Yields a list that gets the body
    of each other scan. `policy`: a name in `jax.checkpoint_policies`.
    """
    scan, bodies = jax.lax.scan, []
    options = {"policy": getattr(jax.checkpoint_policies, policy), "prevent_cse": False}

    def wrapped(
        f: Callable[..., Any],
        init: Any,
        xs: Any = None,
        length: int | None = None,
        reverse: bool = False,
        **kwargs: Any,
    ) -> Any:
        count = next((leaf.shape[0] for leaf in jax.tree.leaves(xs)), length) or 1
        size = max(d for d in range(1, math.isqrt(count) + 1) if count % d == 0)
        if size == 1:
            return scan(f, init, xs, length, reverse, **kwargs)
        bodies.append(f)
        body = jax.checkpoint(f, **options)

        def segment(carry: Any, part: Any) -> Any:
            return scan(body, carry, part, size, reverse, **kwargs)

        parts = jax.tree.map(lambda a: a.reshape(count // size, size, *a.shape[1:]), xs)
        over = jax.checkpoint(segment, **options)
        carry, made = scan(over, init, parts, count // size, reverse)
        return carry, jax.tree.map(lambda a: a.reshape(count, *a.shape[2:]), made)

    with mock.patch.object(jax.lax, "scan", wrapped):
        yield bodies


@contextlib.contextmanager
def sublinear_loss(keep: str) -> Iterator[None]:
    """Context manager in which `jax.grad` and `jax.value_and_grad` apply `olla_xla.sublinear`.
    Of the differentiated function "nothing" is kept, or "dots" (`keep`); the rest is recomputed.
    """
    with wrapped_loss(lambda fun: sublinear(fun, keep=keep)):
        yield


@contextlib.contextmanager
def wrapped_loss(
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Iterator[list[Any]]:
    """Context manager that replaces `jax.grad` and `jax.value_and_grad`: they differentiate
    `wrap(f)` in place of a function `f`. Yields a list, to which each such `f` is appended.
    """
    functions: list[Any] = []

    def wrapped(transform: Callable[..., Any]) -> Callable[..., Any]:
        def differentiate(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            functions.append(fun)
            return transform(wrap(fun), *args, **kwargs)

        return differentiate

    with (
        mock.patch.object(jax, "grad", wrapped(jax.grad)),
        mock.patch.object(jax, "value_and_grad", wrapped(jax.value_and_grad)),
    ):
        yield functions

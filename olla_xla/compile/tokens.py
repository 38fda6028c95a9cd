"""Tokens: a lowered stage compiled again and again, each time as if it were another module.

Compiles of one `Lowered` are memoized under the module's text and JAX's trace context. A token, a
module-level frontend attribute, makes the text another, and a harmless context of its own
(`_next_scope`) the trace context. Were the memo gone, a stage would compile once more.

A token made from a plan's key is part of the key of JAX's persistent cache. What that serves says
in attributes of its instructions (`plan_mark`) which plan it runs.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import jax

from olla_xla.compile.accounting import final_module
from olla_xla.compile.jax_private import own_module
from olla_xla.errors import OllaError

__all__ = ["Token", "mark_of", "marked", "plan_mark"]

_ATTRIBUTES = "mhlo.frontend_attributes"
_KEY = "olla_xla.request"
_MARKED = re.compile(rb"olla_xla-applied-([0-9a-f]{32})")

_SCOPES = itertools.cycle(itertools.product(("allow", "warn", "raise"), ("standard", "strict")))
"""Values of two settings that matter in tracing only, hence not to a compile."""


def _next_scope() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Makes contexts under which JAX memoizes compiles apart from all recent ones."""
    config: Any = jax.config
    current = (config.jax_numpy_rank_promotion, config.jax_numpy_dtype_promotion)
    rank, dtype = next(scope for scope in _SCOPES if scope != current)

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        with jax.numpy_rank_promotion(rank), jax.numpy_dtype_promotion(dtype):
            yield

    return scope


class Token:
    """Marks the module of one compile, which so has an entry of its own in JAX's memo.

    Attributes:
      lasting: whether JAX's persistent cache may keep the executable: the token means the same in
        another process. bytes: the token. scope: makes the JAX context to compile in.
    """

    def __init__(self, key: str = "") -> None:
        self.lasting = bool(key)
        text = f"olla_xla-plan-{key}" if key else f"olla_xla-capture-{uuid.uuid4().hex}"
        self.bytes = text.encode()
        self.scope = _next_scope()


def plan_mark(digest: str) -> str:
    """What instructions say of the plan they run, by its digest."""
    return f"olla_xla-applied-{digest}"


def mark_of(compiled: jax.stages.Compiled) -> str:
    """The digest of the plan that an executable runs, or ""."""
    return mark_in(final_module(compiled))


def mark_in(module: bytes) -> str:
    """The digest of the plan that stands in a serialized module, or ""."""
    found = _MARKED.search(module)
    return found.group(1).decode() if found else ""


@contextlib.contextmanager
def marked(lowered: jax.stages.Lowered, token: bytes) -> Iterator[None]:
    """The module of a lowered stage carries the token inside."""
    ir = own_module("jaxlib.mlir.ir", "jax.extend.mlir.ir")
    module = lowered.compiler_ir("stablehlo")
    if module is None:
        raise OllaError("the lowered function has no StableHLO module")
    attributes = module.operation.attributes
    before = attributes[_ATTRIBUTES] if _ATTRIBUTES in attributes else None
    entries = {} if before is None else {a.name: a.attr for a in ir.DictAttr(before)}
    value = ir.StringAttr.get(token.decode(), context=module.context)
    attributes[_ATTRIBUTES] = ir.DictAttr.get({**entries, _KEY: value}, context=module.context)
    try:
        yield
    finally:
        if before is None:
            del attributes[_ATTRIBUTES]
        else:
            attributes[_ATTRIBUTES] = before

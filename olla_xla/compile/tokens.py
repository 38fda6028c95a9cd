"""Tokens: they let a lowered stage be compiled several times, each time as another module.
JAX memoizes compiles of one `Lowered` by the module's text and JAX's trace context. A token is a
module-level frontend attribute, which changes the text. A harmless setting (`_next_scope`) changes
the trace context. If JAX drops its memo, a stage is compiled once more.

A token made from a plan's key is part of the key of JAX's persistent cache. The instructions of an
executable from there have an attribute that names its plan (`plan_mark`).
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

_ATTRIBUTES = "mhlo.frontend_attributes"
_KEY = "olla_xla.request"
_MARKED = re.compile(rb"olla_xla-applied-([0-9a-f]{32})")

_SCOPES = itertools.cycle(itertools.product(("allow", "warn", "raise"), ("standard", "strict")))
"""Values of two settings that affect tracing only, and so no compile."""


def _next_scope() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Returns a function that makes contexts in which JAX's memo of compiles has no entry of recent
    calls: the two settings of tracing that it sets differ from theirs.
    """
    config: Any = jax.config
    current = (config.jax_numpy_rank_promotion, config.jax_numpy_dtype_promotion)
    rank, dtype = next(scope for scope in _SCOPES if scope != current)

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        with jax.numpy_rank_promotion(rank), jax.numpy_dtype_promotion(dtype):
            yield

    return scope


class Token:
    """A mark put into the module of one compile, by which hook and cache recognise it.
    It is made from `key`, that of a stored plan or a plan's digest; without a key it is random.

    Attributes:
      lasting: whether JAX's persistent cache may keep the executable: the token has a key, so the
        same meaning elsewhere. bytes: the token. scope: makes the JAX context to compile in.
    """

    def __init__(self, key: str = "") -> None:
        self.lasting = bool(key)
        text = f"olla_xla-plan-{key}" if key else f"olla_xla-capture-{uuid.uuid4().hex}"
        self.bytes = text.encode()
        self.scope = _next_scope()


def plan_mark(digest: str) -> str:
    """Returns the text that marks an instruction with the digest of the plan it comes from."""
    return f"olla_xla-applied-{digest}"


def mark_of(compiled: jax.stages.Compiled) -> str:
    """Returns the digest of the plan that an executable was compiled with, or ""."""
    return mark_in(final_module(compiled))


def mark_in(module: bytes) -> str:
    """Returns the digest of the plan by which a serialized module is marked; "" without one."""
    match = _MARKED.search(module)
    return match.group(1).decode() if match else ""


@contextlib.contextmanager
def marked(lowered: jax.stages.Lowered, token: bytes) -> Iterator[None]:
    """Context manager in which a lowered stage's StableHLO module has `token` as an attribute.
    Raises OllaError if the stage has no such module.
    """
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

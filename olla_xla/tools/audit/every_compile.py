"""Audits each executable that a program compiles, as it is compiled.

Importing this does not import JAX, which a script or a test suite is to do by itself.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from olla_xla.errors import OllaError
from olla_xla.tools import dumped
from olla_xla.tools.audit import audit

if TYPE_CHECKING:
    from olla_xla.tools.audit.report import Audit

_FUNCTION = "compile_or_get_cached"
"""Of jax._src.compiler, which has no public counterpart: all compiles of JAX's pass through it."""


@contextlib.contextmanager
def every_compile(found: Callable[[Audit], None], failed: Callable[[str], None]) -> Iterator[None]:
    """Context manager that audits every executable that JAX compiles in it, in any thread.
    A private function of JAX is replaced meanwhile; OllaError if JAX has none of that name.

    Args:
      found: gets each report.
      failed: gets a line for each executable that could not be audited; the program goes on.
    """
    compiler = importlib.import_module("jax._src.compiler")
    own: Any = getattr(compiler, _FUNCTION, None)
    if own is None:
        raise OllaError("with this version of JAX, olla_xla cannot see what is compiled")

    @functools.wraps(own)
    def compiled(backend: Any, module: Any, devices: Any, *args: Any, **kwargs: Any) -> Any:
        executable = own(backend, module, devices, *args, **kwargs)
        try:
            stage = dumped.DumpedExecutable(executable, devices.flat[0])
            found(audit.audit_compiled(stage, module))
        except Exception as error:
            name = str(module.operation.attributes["sym_name"])
            failed(f"{name} was not audited: {type(error).__name__}: {error}")
        return executable

    setattr(compiler, _FUNCTION, compiled)
    try:
        yield
    finally:
        setattr(compiler, _FUNCTION, own)

"""Calls a function when JAX is imported, by whoever does it. Nothing here imports JAX."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def after_jax(call: Callable[[], None]) -> None:
    """Calls a function right after JAX is imported, by whatever code does so, or now if it was.
    The import statement returns only after the call. JAX itself is not imported here: it reads
    environment variables at import, and the program may still set some.
    """
    if "jax" in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterJax(call))


class _AfterJax(importlib.abc.MetaPathFinder):
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self._asks = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """For "jax", returns its usual module spec, whose loader calls `self.call` after loading.
        Returns None for other modules, for which Python then asks its other finders.
        """
        if name != "jax" or self._asks:
            return None
        self._asks = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asks = False  # whoever only looks for JAX may not import it
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                load(module)
                self.call()

            spec.loader.exec_module = exec_module  # of this one object
        return spec

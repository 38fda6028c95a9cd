"""Parts of jaxlib without a public name, imported on first use: an old JAX has them elsewhere."""

import importlib
from typing import Any


def hlo_bindings() -> Any:
    """The module of jaxlib that parses and prints HLO. Raises ImportError."""
    return importlib.import_module("jax._src.lib").hlo


def mlir_bindings() -> Any:
    """The module of jaxlib that converts between HLO and StableHLO. Raises ImportError."""
    return importlib.import_module("jax._src.lib").xla_client._xla.mlir

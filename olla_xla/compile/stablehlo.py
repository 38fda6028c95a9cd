"""A lowered step as StableHLO: its text, its bytecode for keys, the sizes of its tensors."""

from __future__ import annotations

import functools
import io
import math
import re
from typing import TYPE_CHECKING

import jax

from olla_xla.compile.jax_private import own_module

if TYPE_CHECKING:
    from jax.extend.mlir import ir

_TENSOR = re.compile(r"tensor<((?:\d+x)*)(complex<)?[a-z]+(\d+)")


class StableHlo:
    """The StableHLO module of a lowered stage: its name, text, bytecode and number of operations.
    If JAX gives no module for the stage, its text is used instead.
    """

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        self._lowered = lowered

    @functools.cached_property
    def _module(self) -> ir.Module | None:
        return self._lowered.compiler_ir("stablehlo")

    @property
    def name(self) -> str:
        """The name of the StableHLO module, for messages."""
        attributes = {} if self._module is None else self._module.operation.attributes
        return str(attributes["sym_name"]).strip('"') if "sym_name" in attributes else "a step"

    @property
    def text(self) -> str:
        """The StableHLO module printed as text, which takes a while; not cached."""
        return self._lowered.as_text()

    @property
    def bytecode(self) -> bytes:
        """The module's bytecode without locations, the same for one program in every process."""
        passmanager = own_module("jaxlib.mlir.passmanager", "jax.extend.mlir.passmanager")

        if self._module is None:
            return self.text.encode()
        with self._module.context:
            bare = self._module.operation.clone()
            passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(bare)
        output = io.BytesIO()
        bare.write_bytecode(output)
        return output.getvalue()

    @property
    def operations(self) -> int:
        """Number of operations in the module's functions, without nested ones; 0 without module."""
        functions = () if self._module is None else self._module.body.operations
        return sum(len(b.operations) for f in functions for r in f.regions for b in r.blocks)

    def mentions_more(self, limit: int) -> bool:
        """Whether the bytes of all tensor types in the module's text exceed `limit` together."""
        return _bytes(self._signature(), limit) > limit or _bytes(self.text, limit) > limit

    def _signature(self) -> str:
        """Returns the functions' types as text: short, yet shows that a step is large."""
        functions = () if self._module is None else self._module.body.operations
        types = (
            f.attributes["function_type"] for f in functions if "function_type" in f.attributes
        )
        return " ".join(map(str, types))


def _bytes(text: str, limit: int) -> int:
    """Sums the bytes of the tensor types in a text; stops once they are above the limit."""
    total = 0
    for match in _TENSOR.finditer(text):
        dims, parts, width = match.groups()
        element = max(int(width), 8) // 8 * (2 if parts else 1)
        total += math.prod(int(d) for d in dims.split("x") if d) * element
        if total > limit:
            break
    return total

"""Functions of satellites, packages that the core does not import, which planned functions call.
The package's face, `olla_xla/__init__.py`, sets each of these to a function of a satellite, which
is loaded when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

    from olla_xla.compile.checkpoint_policy import CheckpointPolicy
    from olla_xla.problem.plan import Plan

donation_hint: Callable[[Any, Collection[int]], str]
"""From a `jax.stages.Compiled` and the numbers of its static arguments to a line that says what
could be donated; or ""."""

checkpoint_policy: Callable[[jax.stages.Traced, jax.stages.Lowered, Plan], CheckpointPolicy]
"""The policy that keeps what the plan of a traced and lowered function keeps."""

memory_of_kind: Callable[[str], int | None]
"""From JAX's name of a kind of device to the bytes of memory that one has; None where not known."""

own_places: Callable[..., bytes]
"""A CPU executable with its buffers repacked, serialized; raises OllaError where it cannot. Further
arguments are those of `place.executable.relocate.relocated`."""

report: Callable[[], object]
"""All events so far; prints as a table."""

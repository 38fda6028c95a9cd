"""Train states saved to and restored from a directory, with orbax."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Self

import jax
import orbax.checkpoint as ocp

KEPT = 2
"""Checkpoints that a directory keeps, the latest ones."""


class Checkpoints:
    """The checkpoints of one run, a context manager.

    Args:
      directory: where they lie; it is made if need be. None: nothing is saved or restored.
      settings: what decides the run's results, as JSON values. They are saved along, and a
        checkpoint of other settings is refused.
    """

    def __init__(self, directory: str | None, settings: Mapping[str, Any]) -> None:
        self._directory = directory
        self._settings = json.loads(json.dumps(settings))
        self._manager: ocp.CheckpointManager | None = None

    def __enter__(self) -> Self:
        if self._directory is not None:
            # The next step donates the state: saving must be over before it.
            options = ocp.CheckpointManagerOptions(
                max_to_keep=KEPT, enable_async_checkpointing=False
            )
            path = os.path.abspath(os.path.expanduser(self._directory))
            self._manager = ocp.CheckpointManager(path, options=options)
        return self

    def __exit__(self, *_: object) -> None:
        if self._manager is not None:
            self._manager.close()

    def restore(self, state: Any) -> tuple[int, Any]:
        """The steps taken and the state after them, of the latest checkpoint.

        `state` is the first state, which gives the structure; without a checkpoint it is returned
        as it is, after 0 steps. Raises ValueError if the checkpoint is of other settings.
        """
        if self._manager is None or (step := self._manager.latest_step()) is None:
            return 0, state
        saved = self._item(step, settings=ocp.args.JsonRestore())
        for name in sorted(saved | self._settings):
            was, wanted = saved.get(name), self._settings.get(name)
            if was != wanted:
                raise ValueError(
                    f"the checkpoint in {self._directory} is of a run with {name}={was!r}, this "
                    f"one has {wanted!r}; give the same flags or another directory"
                )
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        return step, self._item(step, state=ocp.args.StandardRestore(abstract))

    def _item(self, step: int, **args: ocp.args.CheckpointArgs) -> Any:
        """The one item of the checkpoint that is named."""
        assert self._manager is not None
        (name,) = args
        return self._manager.restore(step, args=ocp.args.Composite(**args))[name]

    def save(self, step: int, state: Any) -> None:
        """Saves the state after `step` steps, unless that is done."""
        if self._manager is None or self._manager.latest_step() == step:
            return
        parts = ocp.args.Composite(
            state=ocp.args.StandardSave(state), settings=ocp.args.JsonSave(self._settings)
        )
        self._manager.save(step, args=parts)

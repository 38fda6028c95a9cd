"""MaxText's own train step, by its program that compiles ahead of time.

That program is run up to where it would compile. It knows its own topologies; here the devices are
the target's.
"""

from __future__ import annotations

import contextlib
import importlib.resources
from collections.abc import Mapping
from typing import Any, NoReturn

import jax
from jax.sharding import AxisType, Mesh
from maxtext.trainers.pre_train import train_compile  # pyright: ignore[reportMissingImports]
from maxtext.utils import maxtext_utils  # pyright: ignore[reportMissingImports]

from benchmarks.trainers import TrainerStep
from olla_xla.targets.target import Target

_FIXED = {
    "run_name": "bench",
    "attention": "dot_product",
    "compile_topology_num_slices": "1",
    "dataset_type": "synthetic",
    "enable_checkpointing": "false",
    "log_config": "false",
}
"""Settings of every run: a step of no data set, that writes nothing."""

_HARDWARE = {"tpu": {"hardware": "tpu", "compile_topology": "v5e-16"}}
_GPU = {"hardware": "gpu", "compile_topology": "a3"}
"""Settings by platform; the topology is asked for, and not used."""


class _Found(Exception):
    """Carries the step out of MaxText's program."""

    def __init__(self, step: TrainerStep) -> None:
        super().__init__()
        self.step = step


def step(policy: str, settings: Mapping[str, str], target: Target) -> TrainerStep:
    """See `Trainer.step`; the settings are MaxText's own."""

    def mesh(config: Any) -> Mesh:
        devices = list(target.devices or jax.devices())
        grid = maxtext_utils.create_device_mesh(config, devices)
        return Mesh(grid, config.mesh_axes, axis_types=(AxisType.Auto,) * len(config.mesh_axes))

    def take(
        function: Any,
        arguments: Any,
        keywords: Any,
        mesh: Mesh,
        in_shardings: Any,
        out_shardings: Any,
        static_argnums: Any,
        donate_argnums: Any,
        config: Any,
        rules: Any,
    ) -> NoReturn:
        @contextlib.contextmanager
        def context() -> Any:
            with jax.set_mesh(mesh), train_compile.axis_rules(config.logical_axis_rules):
                yield

        options = {
            "in_shardings": in_shardings,
            "out_shardings": out_shardings,
            "static_argnums": static_argnums,
            "donate_argnums": donate_argnums,
        }
        raise _Found(TrainerStep(function, options, arguments, keywords, context))

    base = importlib.resources.files("maxtext") / "configs" / "base.yml"
    hardware = _HARDWARE.get(target.platform, _GPU)
    given = {**_FIXED, **hardware, **settings, "remat_policy": policy}
    arguments = ["maxtext", str(base), *(f"{key}={value}" for key, value in given.items())]
    own = train_compile.get_topology_mesh, train_compile.jit_and_compile
    train_compile.get_topology_mesh, train_compile.jit_and_compile = mesh, take
    try:
        train_compile.main(arguments)
    except _Found as found:
        return found.step
    finally:
        train_compile.get_topology_mesh, train_compile.jit_and_compile = own
    raise AssertionError("MaxText's program compiled nothing")

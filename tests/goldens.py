"""Plans that a change of structure must leave as they are; run as a program, from two checkouts.

`python -m tests.goldens capture DIR` stores some 40 scheduled modules: steps of the zoo, loops,
sharded steps, each for a CPU or an H100. `python -m tests.goldens digests DIR` plans each of them
under a step limit and prints the SHA-256 of its plan, seconds zeroed, so that

    PYTHONPATH=before python -m tests.goldens digests DIR > before.txt
    PYTHONPATH=after python -m tests.goldens digests DIR | diff before.txt -

says what a change of the planner changed. Rates of the CPU are kept in DIR, the same for both.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_gpu_autotune_level=0 "
    + os.environ.get("XLA_FLAGS", "")
)

STEPS = (
    ("mlp", 32, "adam", "cpu"),
    ("lenet", 32, "momentum", "cpu"),
    ("alexnet", 1, "sgd", "cpu"),
    ("resnet18", 1, "adam", "cpu"),
    ("gpt", 1, "adam", "cpu"),
    ("mlp", 32, "adam", "h100"),
    ("lenet", 32, "momentum", "h100"),
    ("vgg11", 1, "sgd", "h100"),
    ("mobilenet_v2", 1, "adam", "h100"),
    ("llama_scan", 1, "adam", "h100"),
    ("gpt_scan", 1, "adam", "h100"),
    ("vit_b16", 1, "momentum", "h100"),
    ("examples.zoo.scanned_steps:llama_layers", 4, "adam", "cpu"),
    ("examples.zoo.scanned_steps:llama_layers", 4, "adam", "h100"),
    ("examples.zoo.scanned_steps:gpt_layers", 4, "adam", "h100"),
    ("examples.zoo.scanned_steps:lstm_steps", 4, "sgd", "cpu"),
)
"""Model, batch size, optimizer, target."""

LOOPS = (
    "cond",
    "switch_on_several_arguments",
    "counted_optimizer",
    "negative_indices",
    "slices_that_are_updated",
    "gradient_of_a_gradient",
    "fixed_point_in_chunks",
    "loop_in_a_loop",
    "called_sums",
)
"""Of tests.support.loop_programs, for both targets."""

OPTIONS = (
    {"step_limit": 2000},
    {"step_limit": 2000, "max_overhead": 0.1},
    {"step_limit": 2000, "max_overhead": 0.5, "seed": 1},
)
"""What each module is planned with; no clock ends any of it."""


def capture_all(folder: Path) -> None:
    """Writes each module that is not in the folder yet: NAME.pb, and NAME.json on its target."""
    import jax
    import jax.numpy as jnp

    from olla_xla import targets
    from olla_xla.tools import models
    from olla_xla.tools.capture import capture
    from tests.support import compiles, loop_programs, ode_programs, sharded, tensor_parallel

    def write(name, lower):
        name = name.replace(":", ".")
        path = folder / f"{name}.pb"
        if path.exists():
            return
        captured = capture(lower())
        about = {"platform": captured.platform, "kind": captured.device_kind}
        (folder / f"{name}.json").write_text(json.dumps(about))
        path.write_bytes(captured.module)
        print(name, len(captured.module), flush=True)

    for name, batch_size, optimizer, target in STEPS:

        def lower_model(name=name, batch_size=batch_size, optimizer=optimizer, target=target):
            model = models.build(name, batch_size=batch_size, optimizer=optimizer)
            arguments = targets.target(target).place(model.arguments)
            with models.tracing(name):
                return jax.jit(model.step, **model.jit_options).lower(*arguments)

        write(f"{name}-{batch_size}-{optimizer}-{target}", lower_model)

    programs = {name: loop_programs.PROGRAMS[name]() for name in LOOPS}
    programs |= {name: ode_programs.PROGRAMS[name](64) for name in ("neural_ode", "two_layers")}
    for name, (step, arguments) in programs.items():
        write(f"{name}-cpu", lambda step=step, arguments=arguments: jax.jit(step).lower(*arguments))
        write(
            f"{name}-h100",
            lambda step=step, arguments=arguments: jax.jit(step).lower(
                *compiles.on_h100(jax.tree.map(jnp.asarray, arguments))
            ),
        )
    for module in (sharded, tensor_parallel):
        write(
            module.__name__.rpartition(".")[2],
            lambda module=module: jax.jit(module.step, donate_argnums=(0, 1)).lower(
                *module.arguments()
            ),
        )


def digests(folder: Path, only: str) -> None:
    """Prints a line for each module and options: name, predicted bytes, digest, seconds."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    import msgspec

    from olla_xla.errors import OllaError
    from olla_xla.planner import plan_module
    from olla_xla.planner.warm_up import loaded
    from olla_xla.problem.options import PlanOptions
    from olla_xla.problem.plan import flat

    loaded()
    for path in sorted(folder.glob("*.pb")):
        if only not in path.stem:
            continue
        about = json.loads(path.with_suffix(".json").read_text())
        for options in OPTIONS:
            started = time.monotonic()
            try:
                plan = plan_module(
                    path.read_bytes(),
                    PlanOptions(**options),
                    target=about["platform"],
                    device_kind=about["kind"],
                )
            except OllaError as error:
                print(path.stem, json.dumps(options), repr(error), flush=True)
                continue
            proofs = tuple(dataclasses.replace(proof, seconds=0.0) for proof in plan.proofs)
            plan = dataclasses.replace(plan, seconds=0.0, proofs=proofs)
            text = msgspec.json.encode(flat(plan), enc_hook=float)
            digest = hashlib.sha256(text).hexdigest()[:16]
            print(path.stem, json.dumps(options), plan.predicted_bytes, digest, flush=True)
            took = time.monotonic() - started
            print(f"{path.stem}: {took:.1f} s, {plan.stopped_by}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__)
    parser.add_argument("command", choices=("capture", "digests"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="part of a module's name")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.command == "capture":
        capture_all(arguments.folder.resolve())
    else:
        digests(arguments.folder.resolve(), arguments.only)


if __name__ == "__main__":
    main()

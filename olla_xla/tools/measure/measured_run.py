"""Runs a serialized executable in this process, which should be fresh, and measures its memory.

`python -m olla_xla.tools.measure.measured_run FOLDER`, where `measure` wrote FOLDER; prints a line
of JSON.
"""

import functools
import gc
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable

from olla_xla.compile import process_memory


def main(arguments: Sequence[str]) -> int:
    """Program of a child process: loads and runs an executable, prints its memory as JSON."""
    folder = Path(arguments[0])
    request = json.loads((folder / "request.json").read_text())
    device = jax.devices()[0]
    leaves = request["leaves"]
    flat = tuple(range(len(leaves)))
    executable = serialize_executable.deserialize_and_load(
        (folder / "executable").read_bytes(),
        jax.tree.structure((flat, {})),
        jax.tree.structure(tuple(range(request["outputs"]))),
        backend=device.client,
        execution_devices=[device],
    )
    given = functools.partial(_arguments, folder, leaves, device)
    measured, own = run_twice(executable, given, device)
    print(
        json.dumps(
            {
                "measured": measured,
                "arguments": own,
                "device": device.device_kind,
                "profiled": process_memory.profiled_peak(executable, given),
            }
        )
    )
    return 0


def run_twice(
    executable: Callable[..., Any], arguments: Callable[[], list[Any]], device: Any
) -> tuple[int | None, int]:
    """Runs an executable twice, and measures its memory; nothing else may use the device meanwhile.
    Returns (peak bytes in use, or None where the system does not tell; bytes of the arguments).

    Args:
      executable: to run. arguments: makes them on the device, new each time. device: it runs on.
    """
    on_device = process_memory.DevicePeak(device)
    # The first run starts thread pools and loads kernels, once for all.
    jax.block_until_ready(executable(*arguments()))
    values = arguments()
    gc.collect()
    process_memory.give_memory_back()
    own = sum(value.nbytes for value in values if hasattr(value, "nbytes"))
    resident = process_memory.status_bytes("VmRSS")
    can_reset = process_memory.reset_peak()
    outputs = jax.block_until_ready(executable(*values))
    peak = process_memory.status_bytes("VmHWM")
    del outputs, values
    if device.platform != "cpu":
        return on_device.bytes(), own
    return (peak - resident + own if can_reset and peak and resident else None), own


def _arguments(folder: Path, leaves: list[dict[str, Any]], device: Any) -> list[Any]:
    """Loads the arguments that `measure` wrote to `folder` onto the device; zeros for mere shapes.
    They are new each time, since donated ones are gone after a run.
    """
    values = []
    for k, leaf in enumerate(leaves):
        path, dtype = folder / f"leaf{k}", jax.numpy.dtype(leaf["dtype"])
        shape = tuple(leaf["shape"])
        if path.exists():
            value = np.fromfile(path, np.uint8).view(dtype).reshape(shape)
        else:
            value = np.zeros(shape, dtype)
        value = jax.device_put(value, device)
        if leaf["key"]:
            value = jax.random.wrap_key_data(value, impl=leaf["key"])
        values.append(value)
    return jax.block_until_ready(values)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

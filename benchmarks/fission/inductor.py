"""GPT-2's head under PyTorch's Inductor and its auto_chunker: resident memory and time on this CPU.

A program of its own, for an environment with torch: `python benchmarks/fission/inductor.py MODE`,
where MODE is "compiled", as Inductor makes it, or a number of chunks. It prints one line of JSON:
MB by which resident memory rose at most while the step ran, weights and tokens included, as
`python -m benchmarks fission --steps="head of GPT-2 in 8"` has them, and seconds of the fastest of
two runs. "chunked" says whether auto_chunker found something.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch._inductor import config, metrics  # pyright: ignore[reportMissingImports]

TOKENS, WIDTH, WORDS = 8192, 768, 50_304
RUNS = 2


def _status_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def _measured(mode: str) -> dict[str, Any]:
    if mode != "compiled":
        config.auto_chunker.enable = True
        config.auto_chunker.num_chunk = int(mode)
    config.fx_graph_cache = False
    torch.manual_seed(0)
    head = torch.nn.Linear(WIDTH, WORDS, bias=False)
    x = torch.randn(TOKENS, WIDTH, requires_grad=True)
    y = torch.randint(0, WORDS, (TOKENS,))

    @torch.compile
    def loss() -> Any:
        return torch.nn.functional.cross_entropy(head(x), y)

    def step() -> float:
        value = loss()
        value.backward()
        return value.item()

    def cleared() -> None:
        head.weight.grad = x.grad = None

    step()  # compiles
    cleared()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, seconds, value = _status_mb("VmRSS"), [], 0.0
    for _ in range(RUNS):
        started = time.perf_counter()
        value = step()
        seconds.append(time.perf_counter() - started)
        cleared()
    arguments = 4 * (head.weight.numel() + x.numel()) / 2**20
    return {
        "mode": mode,
        "torch": torch.__version__,
        "chunked": metrics.num_auto_chunking > 0,
        "resident_mb": round(_status_mb("VmHWM") - before + arguments, 1),
        "seconds": round(min(seconds), 2),
        "loss": value,
    }


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1])))

"""Records loops in PyTorch on a CPU: `python record_torch.py FOLDER`, where torch is installed.

Writes a trace for each loop, as `python -m benchmarks profile --trace=FILE.json` reads it, and
prints the median time of an iteration without the profiler.
"""

from __future__ import annotations

import importlib
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

torch: Any = importlib.import_module("torch")  # not among this project's requirements

_ITERATIONS = 4
_TIMED = 20
_LENGTHS = (20, 28, 24, 32)

Step = Callable[[int], object]


def perceptron() -> Step:
    """Training of three layers, Adam, batch 64."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    inputs, labels = torch.randn(64, 784), torch.randint(0, 10, (64,))
    return _training(model, lambda _: nn.functional.cross_entropy(model(inputs), labels))


def convolutions() -> Step:
    """Training of a small network of convolutions with batch norms, Adam, batch 16, 32 x 32."""
    nn = torch.nn

    def block(into: int, out: int) -> Any:
        layers = nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()
        return nn.Sequential(*layers, nn.MaxPool2d(2))

    body = nn.Sequential(block(3, 32), block(32, 64), block(64, 128))
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(128 * 16, 10))
    inputs, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    return _training(model, lambda _: nn.functional.cross_entropy(model(inputs), labels))


def recurrent() -> Step:
    """Training of an LSTM cell over sequences of changing lengths, Adam, batch 32, width 128."""
    nn = torch.nn
    cell, head = nn.LSTMCell(64, 128), nn.Linear(128, 10)

    def loss(length: int) -> Any:
        state = torch.zeros(32, 128), torch.zeros(32, 128)
        for x in torch.randn(length, 32, 64).unbind():
            state = cell(x, state)
        return head(state[0]).square().mean()

    return _training(nn.ModuleList((cell, head)), loss)


def _training(model: Any, loss: Callable[[int], Any]) -> Step:
    optimizer = torch.optim.Adam(model.parameters())

    def step(length: int) -> None:
        loss(length).backward()
        optimizer.step()
        optimizer.zero_grad()  # last, so that gradients are of one iteration

    return step


def main(folder: Path) -> None:
    """Records and times each loop."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for make in (perceptron, convolutions, recurrent):
        step, lengths = make(), itertools.cycle(_LENGTHS)
        for length in _LENGTHS:
            step(length)
        seconds = []
        for _ in range(_TIMED):
            started = time.perf_counter()
            step(next(lengths))
            seconds.append(time.perf_counter() - started)
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profiler:
            for _ in range(2 * _ITERATIONS):
                length = next(lengths)
                same = make is not recurrent
                with torch.profiler.record_function("iteration" if same else f"iteration {length}"):
                    step(length)
        profiler.export_chrome_trace(str(folder / f"torch_{make.__name__}.json"))
        print(f"{make.__name__}: {1000 * statistics.median(seconds):.2f} ms an iteration")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

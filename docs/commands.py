"""Runs the quick commands of README and docs in a fresh folder, and holds figures to the text.

`python docs/commands.py`, from anywhere. Each figure is read from the document and from what the
command printed; they may differ by `TOLERANCE`, since a clock ends most searches. Exit code 1,
with a line for each, where one does, where a command fails or the referee refuses a choice of the
planner, or where a document no longer has it.
After them come the commands of the papers' tables, each of which is to exit with 0.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

__all__ = ["COMMANDS", "TOLERANCE", "Command", "Figure", "main", "paper_commands"]

ROOT = Path(__file__).resolve().parents[1]

TOLERANCE = 0.05
"""Part of a figure in the text by which what is printed may differ."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number that a document and a command's output both have.

    Attributes:
      document: its path from the root. said, printed: patterns whose first group is the number.
    """

    document: str
    said: str
    printed: str


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of a document.

    Attributes:
      words: what follows `python`. figures: to be compared. code: the exit code expected.
      program: a document whose first Python block is run instead.
    """

    words: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    code: int = 0
    program: str = ""


def _olla(line: str, *figures: Figure, code: int = 0) -> Command:
    return Command(("-m", "olla_xla", *line.split()), figures, code)


_RESNET = r"\| cpu \| resnet50 \| 4 \| adam \| "
_PEAK, _BUDGET = "docs/guides/out-of-memory.md", "docs/guides/memory-budget.md"
_RESULTS = "docs/results.md"
_FIRST = "docs/guides/first-plan.md"

COMMANDS = (
    _olla("--help"),
    _olla("--version"),
    _olla("--list_targets"),
    _olla(
        "run examples/convnet.py",
        Figure("README.md", r"\ntrain_step .*\] +([\d.]+)", r"\ntrain_step .*\] +([\d.]+)"),
        Figure(
            "README.md",
            r"\ntrain_step .*\] +[\d.]+ +([\d.]+)",
            r"\ntrain_step .*\] +[\d.]+ +([\d.]+)",
        ),
    ),
    _olla(
        "plan --model=resnet50 --batch_size=4 --noadvice",
        Figure("README.md", r"([\d.]+) MB become", r"XLA's own order +([\d.,]+) MB"),
        Figure("README.md", r"MB become ([\d.]+)\.", r"\nplanned +([\d.,]+) MB"),
        Figure(_RESULTS, _RESNET + r"[\d.,]+ \| [\d.,]+ \| ([\d.,]+)", r"\nplanned +([\d.,]+) MB"),
        Figure(
            _RESULTS,
            _RESNET + r"[\d.,]+ \| [\d.,]+ \| [\d.,]+ \| [\d.,]+ \| ([\d.,]+)",
            r"lower bound +([\d.,]+) MB",
        ),
    ),
    _olla(
        "analyze --model=resnet18 --batch_size=4 --plan --noadvice --html=memory.html",
        Figure(_PEAK, r"XLA's order: ([\d.,]+) MB assigned", r"XLA's order: ([\d.,]+) MB assigned"),
        Figure(_PEAK, r"planned: ([\d.,]+) MB assigned", r"planned: ([\d.,]+) MB assigned"),
        Figure(_PEAK, r"needs less than ([\d.,]+) MB", r"needs less than ([\d.,]+) MB"),
    ),
    _olla(
        "plan --model=mlp --batch_size=2048 --memory_budget=5MiB --time_limit=10",
        Figure(_BUDGET, r"was reached is ([\d.,]+) MB", r"was reached is ([\d.,]+) MB"),
        code=2,
    ),
    Command(
        (),
        (
            Figure(_FIRST, r"XLA's order ([\d.,]+) MB, planned", r"XLA's order ([\d.,]+) MB"),
            Figure(_FIRST, r"MB, planned ([\d.]+) MB\n", r"planned ([\d.,]+) MB"),
            Figure(_FIRST, r"needs less than ([\d.]+) MB", r"needs less than ([\d.,]+) MB"),
        ),
        program=_FIRST,
    ),
    _olla("analyze --model=mlp --json=memory.json --noadvice"),
    _olla("check --model=mlp --baseline=memory.json --tolerance=1%"),
    _olla("diff memory.json memory.json"),
    _olla("sweep --models=mlp,lenet --batch_sizes=1,8 --targets=cpu --time_limit=5"),
    _olla("max_batch --model=lenet --target=cpu --memory=64MiB --time_limit=5"),
)


PAPERS = "docs/guides/papers.md"
"""Whose tables have a command in each row, in the column of that name."""


def paper_commands() -> list[Command]:
    """The commands of the papers' tables, each once."""
    found: dict[tuple[str, ...], None] = {}
    column = None
    for line in _text(PAPERS).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            column = None
        elif "command" in cells:
            column = cells.index("command")
        elif column is not None:
            for code in re.findall(r"`([^`]+)`", cells[column]):
                words = tuple(code.split())
                words = ("-m", *words) if words[0] == "olla_xla" else words[1:]
                found[words] = None
    return [Command(words) for words in found]


def main() -> int:
    """Runs them all; 1 where anything differs."""
    trouble = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("benchmarks", "docs", "examples"):  # files that commands read
            (Path(folder) / name).symlink_to(ROOT / name)
        for command in (*COMMANDS, *paper_commands()):
            started = time.monotonic()
            found = _wrong(command, Path(folder))
            name = command.program or " ".join(command.words[2:])
            state = "; ".join(found) or "as in the text"
            print(f"{time.monotonic() - started:6.1f} s  {name}: {state}", flush=True)
            trouble += found
    return int(bool(trouble))


def _wrong(command: Command, folder: Path) -> list[str]:
    """What a command does otherwise than its document says."""
    words = command.words
    if command.program:
        blocks = re.findall(r"```python\n(.*?)```", _text(command.program), re.DOTALL)
        program = folder / "program.py"
        program.write_text(blocks[0])
        words = (str(program),)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != command.code:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return [f"exit code {done.returncode}, not {command.code}: {last}"]
    printed = f"\n{done.stdout}{done.stderr}"
    if refused := re.search(r"[\d,]+ of [\d,]+ choices refused by the check", printed):
        return [refused[0]]
    return [wrong for figure in command.figures if (wrong := _differs(figure, printed))]


def _differs(figure: Figure, printed: str) -> str:
    """How a figure in the text differs from the one that was printed, or ""."""
    said = re.search(figure.said, _text(figure.document))
    found = re.search(figure.printed, " ".join(["", *printed.split(" ")]))
    if said is None or found is None:
        where = figure.document if said is None else "the output"
        return f"{where} has no figure like {figure.said if said is None else figure.printed}"
    expected, actual = (float(m[1].replace(",", "")) for m in (said, found))
    if abs(actual / expected - 1) <= TOLERANCE:
        return ""
    return f"{figure.document} says {expected:,}, printed were {actual:,}"


def _text(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

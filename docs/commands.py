"""Runs the commands of README and docs, and compares what they print with the text where it stands.

`python docs/commands.py [DOCUMENT ...]`, from anywhere; without names, of all. A comment in a
document names a command for the block or the paragraph below it:

    <!-- prints: olla_xla plan --model=mlp -->

The command prints every line of a `text` block, one after the other ("..." stands for lines left
out), or every number with a decimal point of a paragraph. Numbers may differ by `TOLERANCE`, since
a clock ends most searches. `the program` for a command is the Python block above. Between the verb
and the colon may stand `, with exit code 2` and `, but for 1.6`: a number that is not compared.
`<!-- runs: COMMAND -->` only runs one.

Exit code 1, with a line for each, where a text differs, a command fails, or the referee refuses a
choice of the planner. The commands of the papers' tables, which take minutes, are to exit with 0.
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

__all__ = ["PAPERS", "TOLERANCE", "Command", "commands", "differs", "main", "paper_commands"]

ROOT = Path(__file__).resolve().parents[1]

TOLERANCE = 0.05
"""Part of a number in the text by which what is printed may differ."""

PAPERS = "docs/guides/papers.md"
"""Whose tables have a command in each row, in the column of that name."""

_ONLY_PLANNED = ("plan", "analyze", "check", "sweep", "max_batch")
"""Commands that run nothing of what XLA compiles: LLVM need not optimize it, which changes no
buffer (plan --model=resnet50: 57 instead of 66 s of processor)."""


_PROGRAM = "the program"
_MARK = re.compile(
    r"^<!-- (prints|runs)(?:, with exit code (\d+))?(?:, but for ([\d.]+))?: (.+) -->\n+"
)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of a document.

    Attributes:
      document: its path from the root. words: what follows `python`.
      text: the block or the paragraph that it prints; "" if it is only run.
      code: the exit code expected. free: a number of the text that is not compared, or "".
      program: Python code to run instead of `words`, or "".
    """

    document: str
    words: tuple[str, ...]
    text: str = ""
    code: int = 0
    free: str = ""
    program: str = ""

    @property
    def name(self) -> str:
        """How the document calls it."""
        return _PROGRAM if self.program else " ".join(self.words).removeprefix("-m ")


def commands(document: str) -> list[Command]:
    """The commands that a document's comments name, in order.

    Raises:
      ValueError: a comment names none, or nothing to compare stands below it.
    """
    found, code = [], ""
    for part in re.split(r"(?m)^(?=<!-- (?:prints|runs)|```python\n)", _text(document)):
        if part.startswith("```python\n"):
            code = part.removeprefix("```python\n").split("\n```")[0] + "\n"
        if not part.startswith("<!-- "):
            continue
        mark = _MARK.match(part)
        if mark is None:
            raise ValueError(f"{document}: {part.splitlines()[0]} names no command")
        verb, exit_code, free, line = mark.groups()
        text = _below(part[mark.end() :]) if verb == "prints" else ""
        if verb == "prints" and not _NUMBER.search(text):
            raise ValueError(f"{document}: nothing to compare stands below {mark[0].strip()}")
        program = code if line == _PROGRAM else ""
        words = () if program else _words(line)
        found.append(Command(document, words, text, int(exit_code or 0), free or "", program))
    return found


def _below(rest: str) -> str:
    """The first block of a text, without fences and command, or its first paragraph on a line."""
    if block := re.match(r"```text\n(?:\$ [^\n]*\n)?(.*?)\n```", rest, re.DOTALL):
        return block[1] + "\n"
    return " ".join(rest.split("\n\n")[0].split())


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
                found[_words(code)] = None
    return [Command(PAPERS, words) for words in found]


def _words(line: str) -> tuple[str, ...]:
    """A command as what follows `python`."""
    first, *others = line.split()
    return ("-m", first, *others) if first == "olla_xla" else tuple(others)


def differs(command: Command, printed: str) -> str:
    """How a text differs from what its command printed, or ""."""
    if "\n" not in command.text:  # a paragraph
        numbers = [_value(n) for n in _NUMBER.findall(printed)]
        for said in re.findall(r"\d[\d,]*\.\d+", command.text):
            if said != command.free and not any(_alike(_value(said), n) for n in numbers):
                return f"{command.document} says {said}, which was not printed"
        return ""
    output = printed.split()
    for part in re.split(r"(?m)^\.\.\.$", command.text):
        words, best = part.split(), 0
        for start in range(len(output) - len(words) + 1):
            same = 0
            while same < len(words) and _same(words[same], output[start + same], command.free):
                same += 1
            if same == len(words):
                break
            best = max(best, same)
        else:
            lines = f"{' '.join(words[max(0, best - 3) : best])} [{words[best]}]"
            return f"{command.document} says {lines}, which was not printed"
    return ""


def _same(said: str, printed: str, free: str) -> bool:
    """Whether a word of a text is the printed one, but for what numbers may differ."""
    if set(said) == set(printed) == {"-"}:  # a line below the names of columns
        return True
    if said == free:
        return _NUMBER.fullmatch(printed) is not None
    if _NUMBER.sub("0", said) != _NUMBER.sub("0", printed):
        return False
    pairs = zip(_NUMBER.findall(said), _NUMBER.findall(printed), strict=True)
    return all(_alike(_value(a), _value(b)) for a, b in pairs)


def _value(number: str) -> float:
    return float(number.replace(",", "").rstrip("."))


def _alike(said: float, printed: float) -> bool:
    return abs(printed - said) <= TOLERANCE * said


def main() -> int:
    """Runs them all; 1 where anything differs."""
    trouble = []
    every = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
    documents = sys.argv[1:] or every
    papers = paper_commands() if PAPERS in documents else []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("benchmarks", "docs", "examples"):  # files that commands read
            (Path(folder) / name).symlink_to(ROOT / name)
        for command in (*(c for d in documents for c in commands(d)), *papers):
            started = time.monotonic()
            found = _wrong(command, Path(folder))
            state = found or "as in the text"
            print(f"{time.monotonic() - started:6.1f} s  {command.name}: {state}", flush=True)
            trouble += [found] if found else []
    return int(bool(trouble))


def _wrong(command: Command, folder: Path) -> str:
    """What a command does otherwise than its document says, or ""."""
    words = command.words
    if command.program:
        program = folder / "program.py"
        program.write_text(command.program, encoding="utf-8")
        words = (str(program),)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    if words[1:3] in [("olla_xla", name) for name in _ONLY_PLANNED]:
        given = os.environ.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{given} --xla_backend_optimization_level=0".strip()
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != command.code:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return f"exit code {done.returncode}, not {command.code}: {last}"
    printed = f"{done.stdout}\n{done.stderr}"
    if refused := re.search(r"[\d,]+ of [\d,]+ choices refused by the check", printed):
        return refused[0]
    return differs(command, printed)


def _text(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

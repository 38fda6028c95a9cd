"""What an audit of an executable found, for people, for programs, and for an issue."""

import dataclasses
import io
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hlo.module import HloError, module_from_bytes
from olla_xla.memory.sources import source_line
from olla_xla.problem.whole_file import written_for_user
from olla_xla.version import versions

_NAMES = re.compile(r"[\w.\-]*\w")

_TEXTS = {"target": "target.txt", "stablehlo": "step.stablehlo.txt"}
"""Part of an executable -> its file in a zip, where that is not NAME.pb."""


class Finding(NamedTuple):
    """Something that an audit found wrong with an executable.

    Attributes:
      check: name of the check that objects, such as "slices". message: what is wrong, in one line.
      instruction: the first one that the message names, or "". instructions: all of them.
      line: of the program, "file:line"; "" where XLA does not know it.
      operation: JAX's name of the operation, such as "jit(loss)/while/body/dynamic_slice", or "".
    """

    check: str
    message: str
    instruction: str
    line: str
    operation: str
    instructions: tuple[str, ...] = ()


class ExecutableParts(NamedTuple):
    """An executable as it is audited: its module, memory and code, mostly serialized.

    Attributes:
      target: "cpu", "cuda" or "tpu". module: the final HloModuleProto, serialized.
      assignment: its BufferAssignmentProto, serialized, or b"".
      executable: a GPU's or CPU's, as XLA serializes it, or b"".
      stablehlo: the lowered program's text, or "".
      before: the module before some of XLA's passes, serialized, or b"".
    """

    target: str
    module: bytes
    assignment: bytes = b""
    executable: bytes = b""
    stablehlo: str = ""
    before: bytes = b""


@dataclasses.dataclass(frozen=True)
class Audit:
    """The results of an audit: what is wrong with one executable, and what was checked.

    Attributes:
      name: of its module. target: "cpu", "cuda" or "tpu".
      findings: what is wrong; empty where nothing is.
      followed: kind of what was checked, such as "aliases" -> how many. trusted: kind of kernel,
        whose code was not looked at -> how many. left: what could not be checked, a line each.
      doubts: what XLA is known to do wrong at times and the executable does, a line each.
      seconds: that the audit took, without compiling. parts: the executable.
    """

    name: str
    target: str
    findings: tuple[Finding, ...]
    followed: Mapping[str, int]
    trusted: Mapping[str, int]
    left: tuple[str, ...]
    doubts: tuple[str, ...]
    seconds: float
    parts: ExecutableParts = dataclasses.field(repr=False, compare=False)

    def __bool__(self) -> bool:
        """Whether the audit found nothing wrong."""
        return not self.findings

    def __str__(self) -> str:
        """The report as text, as `olla_xla audit` prints it."""
        count = len(self.findings)
        said = f"{count or 'no'} finding{'s' * (count != 1)}"
        lines = [f"{self.name} ({self.target}): {said}"]
        for finding in self.findings:
            lines.append(f"  wrong, {finding.check}: {finding.message}")
            if where := "  ".join(filter(None, (finding.line, finding.operation))):
                lines.append(f"    at {where}")
        for title, counts in (
            ("checked", self.followed),
            ("code of kernels, not checked", self.trusted),
        ):
            text = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)
            lines += [f"  {title}: {text}"] if text else []
        lines += [f"  doubtful: {line}" for line in self.doubts]
        lines += [f"  not checked: {line}" for line in self.left]
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """The audit as plain dicts, lists and numbers, for JSON, without the executable."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del fields["parts"]
        return {**fields, "findings": [f._asdict() for f in self.findings]}

    def save(self, path: str | Path) -> None:
        """Writes a zip with the report, the module, its assignment and the executable.
        It is for an issue of XLA's; `olla_xla audit --hlo=FILE` repeats the audit. Constants are in
        it as they are. Raises InputError if the file cannot be written.
        """
        about = f"{self}\nversions: {versions()}\nXLA_FLAGS: {os.environ.get('XLA_FLAGS', '')}\n"
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("audit.txt", about)
            for name, part in self.parts._asdict().items():
                file.writestr(_TEXTS.get(name, f"{name}.pb"), part)
        with written_for_user(path) as beside:
            beside.write_bytes(data.getvalue())


def saved_parts(path: str | Path) -> ExecutableParts | None:
    """Reads the executable from a file that `Audit.save` wrote; None where it is no such file."""
    try:
        with zipfile.ZipFile(path) as file:
            held = {name: file.read(name) for name in file.namelist()}
        parts = {f: held.get(_TEXTS.get(f, f"{f}.pb"), b"") for f in ExecutableParts._fields}
        texts = {name: parts[name].decode() for name in _TEXTS}
    except (zipfile.BadZipFile, OSError, ValueError):
        return None
    return ExecutableParts(**{**parts, **texts}) if texts["target"] else None


def located(module: bytes, objections: tuple[tuple[str, str], ...]) -> tuple[Finding, ...]:
    """Makes a Finding of each objection, with the instructions it names and a source line.
    `module` is serialized. `objections`: (name of the check, what it says is wrong).
    """
    try:
        computations = module_from_bytes(module).computations if objections else []
    except HloError:
        computations = []
    named = {i.name: i for c in computations for i in c.instructions}
    findings = []
    for check, message in objections:
        cited = {n: named[n] for n in _NAMES.findall(message) if n in named}
        known = [i for i in cited.values() if source_line(i)] or list(cited.values())
        where = (source_line(known[0]), known[0].op_name) if known else ("", "")
        findings.append(Finding(check, message, next(iter(cited), ""), *where, tuple(cited)))
    return tuple(findings)

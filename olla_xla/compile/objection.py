"""Cases that the referee objected to, each in one file with all that is needed to reproduce it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hlo import constants
from hlo.files import LARGEST, read_regular
from hlo.module import module_from_bytes
from hlo.shapes import ShapeIndex
from olla_xla.check.executable import (
    Accepted,
    KernelMemory,
    check_executable,
    check_places,
    check_planned,
    results_digest,
)
from olla_xla.compile import gpu_code
from olla_xla.errors import CheckError, InputError
from olla_xla.problem import plan as plan_file
from olla_xla.problem.plan import Plan
from olla_xla.problem.whole_file import keep, user_cache
from olla_xla.version import versions

if TYPE_CHECKING:
    from hlo.gpu_executable import GpuExecutable

_MEMBERS = ("scheduled", "planned", "final", "assignment", "executable")
"""The parts of a case that are serialized protos, as `Case` names them."""


_NO_ZIP = (zipfile.BadZipFile, zlib.error, struct.error)


class Seen(NamedTuple):
    """What the checker accepted: `accepted`, the planned module, if that was checked; if an
    executable was, `kernels`: kernel -> which of its arrays share memory.
    """

    accepted: Accepted | None = None
    kernels: Mapping[str, KernelMemory] = {}


@dataclasses.dataclass(frozen=True)
class Case:
    """Modules and executable of a plan, as the checker gets them, and saved if it rejects them.

    Attributes:
      target: "cpu", "cuda" or "tpu".
      scheduled: HloModuleProto as XLA scheduled it; b"" where JAX's cache served the executable.
      planned: the same module with the plan applied, as it was handed back to XLA.
      final: HloModuleProto of the executable; b"" before it is compiled.
      assignment: its BufferAssignmentProto, or b"" where the backend does not give it.
      executable: a GPU's executable as XLA serializes it, or b"" where it is not given.
      results: `check.executable.results_digest` of XLA's own module; if "", that of `scheduled` is
        used where it is there.
      donated: (parameter number, index) of the arguments whose memory outputs take over.
      stablehlo: the lowered step's text. plan: the text of a plan file.
      objection: the checker's message; "" if there was none.
    """

    target: str
    results: str
    scheduled: bytes = b""
    planned: bytes = b""
    final: bytes = b""
    assignment: bytes = b""
    executable: bytes = b""
    donated: frozenset[tuple[int, ShapeIndex]] = frozenset()
    stablehlo: str = ""
    plan: str = ""
    objection: str = ""

    @functools.cached_property
    def gpu(self) -> GpuExecutable | None:
        """The GPU executable, parsed; None if there is none, or it cannot be read."""
        return gpu_code.read_or_say(self.executable) if self.executable else None

    def with_results(self, results: str) -> Case:
        """Returns a copy with the digest `results`, which keeps the parsed executable."""
        other = dataclasses.replace(self, results=results)
        other.__dict__["gpu"] = self.gpu
        return other

    def check(self, accepted: Accepted | None = None) -> Seen:
        """Has the checker check the executable against XLA's module or, before it is compiled, the
        planned module. Returns what it accepted; raises CheckError if it objects.
        `accepted`: the planned module, if the executable is known to run it unchanged.
        """
        if not self.final:
            return Seen(check_planned(self.scheduled, self.planned, self.target))
        given: dict[str, Any] = {"assignment": self.assignment, "donated": self.donated}
        given["executable"] = self.gpu
        if accepted is not None:
            return Seen(kernels=check_places(accepted, self.final, self.target, **given))
        results = self.results
        if not results and self.scheduled:
            results = results_digest(self.scheduled, self.target)
        results = results or None
        return Seen(kernels=check_executable(self.final, self.target, results=results, **given))


def save(case: Case, plan: Plan, error: CheckError, folder: Path | None = None) -> Path:
    """Writes a case (a plan's modules and executable that the checker rejected, with `error`) to a
    zip file that only its owner can read, by default in the user's cache; returns the file's path.
    Constants of more than 64 bytes are left out of modules and of the StableHLO text (a GPU's
    executable keeps them), unless OLLA_XLA_CONSTANTS=1 is set, or XLA's own module is not known.
    Raises OSError if the file cannot be written, RuntimeError if the user has no home.
    """
    digest = hashlib.sha256(case.final + case.planned).hexdigest()[:12]
    if case.scheduled and os.environ.get("OLLA_XLA_CONSTANTS", "") in ("", "0"):
        case = _without_constants(case)
    about = "\n".join(
        (
            str(error),
            f"target: {case.target}",
            f"results: {case.results}",
            f"versions: {versions()}",
            f"XLA_FLAGS: {os.environ.get('XLA_FLAGS', '')}",
            "check it again: olla_xla objection FILE",
        )
    )
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("objection.txt", about + "\n")
        for name in _MEMBERS:
            file.writestr(f"{name}.pb", getattr(case, name))
        file.writestr("step.stablehlo.txt", case.stablehlo)
        file.writestr("plan.json", plan_file.dumps(plan))
    path = (folder or user_cache() / "objections") / f"olla_xla-objection-{digest}.zip"
    keep(path, data.getvalue(), mode=0o600)
    return path


def _without_constants(case: Case) -> Case:
    salt = os.urandom(32)  # results are digested anew: of the module as it is in the file
    modules = {
        name: constants.without_constants(getattr(case, name), salt)
        for name in ("scheduled", "planned", "final")
    }
    text = constants.text_without_constants(case.stablehlo)
    return dataclasses.replace(case, **modules, stablehlo=text, results="")


def load(path: Path) -> Case:
    """Reads a case (the modules of a rejected plan) from a file of `save`. Raises InputError."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_regular(path))) as file:
            if sum(member.file_size for member in file.infolist()) > LARGEST:
                raise ValueError(f"the file has more than {LARGEST:,} bytes")
            held = set(file.namelist())  # files of earlier versions have fewer
            wanted = ((name, f"{name}.pb") for name in _MEMBERS)
            protos = {name: file.read(path) for name, path in wanted if path in held}
            objection, target, results = file.read("objection.txt").decode().split("\n")[:3]
            scheduled = protos.get("scheduled", b"")
            return Case(
                donated=module_from_bytes(scheduled).donated if scheduled else frozenset(),
                target=target.removeprefix("target: "),
                results=results.removeprefix("results: "),
                stablehlo=file.read("step.stablehlo.txt").decode(),
                plan=file.read("plan.json").decode(),
                objection=objection,
                **protos,
            )
    except (OSError, LookupError, ValueError, RuntimeError, EOFError, *_NO_ZIP) as error:
        raise InputError(f"{path} is not the file of a rejected plan: {error}") from error

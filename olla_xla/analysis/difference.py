"""What takes more memory than before: two analyses or plans, tensor by tensor.

Tensors at the peaks of two analyses are the same if they are of one category and shape, and the
same argument or operation; names of XLA's and source lines change too easily. A plan file knows
sizes and names of all tensors, and not when they live: two plans are compared by these.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from hlo.files import read_regular
from olla_xla.analysis.analysis import FORMAT, VERSION, Analysis
from olla_xla.errors import InputError
from olla_xla.problem.plan import Plan

Key = tuple[str, str, str]
"""What makes two tensors the same: category, shape, and what they are or come from."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The memory of one step as read from a plan or an analysis, in a form that can be compared.

    Attributes:
      name: of the file or of what was compiled.
      total_bytes: arguments + outputs - aliases + temp.
      of_plan: True: from a plan, with all tensors; False: from an analysis, with those at its peak.
      tensors: (category, shape, argument or operation) -> (number of tensors, bytes of all); of a
        plan the key is ("", size as text, name without its number).
      title: the analysis' title, or the plan's module name. planned: whether it is a plan's order.
    """

    name: str
    total_bytes: int
    of_plan: bool
    tensors: Mapping[Key, tuple[int, int]]
    title: str = ""
    planned: bool = False

    @staticmethod
    def of_analysis(analysis: Analysis | Mapping[str, Any], name: str) -> Snapshot:
        """Makes a snapshot of an analysis or its `to_dict`, in the plan's order if it has one."""
        fields = analysis.to_dict() if isinstance(analysis, Analysis) else analysis
        view = fields["planned"] or fields["xla"]
        sums: dict[Key, tuple[int, int]] = {}
        for t in view["tensors"]:
            what = t["argument"] or t["op_name"] or t["line"] or t["operator"] or t["why"]
            _count(sums, (t["category"], t["shape"], what), t["bytes"])
        planned = bool(fields["planned"])
        return Snapshot(name, view["total_bytes"], False, sums, fields["title"], planned)

    @staticmethod
    def of_plan_file(plan: Plan, name: str) -> Snapshot:
        """Makes a snapshot of a plan, called `name`; tensors are alike by size and name's stem."""
        sums: dict[Key, tuple[int, int]] = {}
        for tensor, (_, size) in plan.offsets.items():
            stem = re.sub(r"(\.\d+)+", "", tensor)
            _count(sums, ("", f"{size:,} bytes", stem), size)
        return Snapshot(name, plan.total_bytes, True, sums, plan.module, True)


def _count(sums: dict[Key, tuple[int, int]], key: Key, size: int) -> None:
    count, total = sums.get(key, (0, 0))
    sums[key] = count + 1, total + size


@dataclasses.dataclass(frozen=True)
class TensorChange:
    """One kind of tensors whose memory differs between two snapshots.

    Attributes:
      category, shape, what: the key of `Snapshot.tensors`. before, after: (number, bytes of all).
    """

    category: str
    shape: str
    what: str
    before: tuple[int, int]
    after: tuple[int, int]

    @property
    def bytes(self) -> int:
        """Bytes of these tensors after minus bytes before; negative if they take less after."""
        return self.after[1] - self.before[1]


@dataclasses.dataclass(frozen=True)
class Difference:
    """What differs in memory between two snapshots of steps (plans or analyses).

    Attributes:
      before, after: the snapshots. changes: kinds of tensors that differ, the largest change first.
    """

    before: Snapshot
    after: Snapshot
    changes: tuple[TensorChange, ...]

    @property
    def bytes(self) -> int:
        """Total bytes after minus total bytes before."""
        return self.after.total_bytes - self.before.total_bytes

    @property
    def share(self) -> float:
        """The growth in total bytes as a fraction of the total before; negative if it shrank."""
        return self.bytes / max(self.before.total_bytes, 1)

    def to_dict(self) -> dict[str, Any]:
        """Returns the names and totals of both snapshots, and the changes, as a dict for JSON."""
        return {
            "before": {"name": self.before.name, "total_bytes": self.before.total_bytes},
            "after": {"name": self.after.name, "total_bytes": self.after.total_bytes},
            "changes": [{**dataclasses.asdict(c), "bytes": c.bytes} for c in self.changes],
        }


def difference(before: Snapshot, after: Snapshot) -> Difference:
    """Compares the tensors of two snapshots by category, shape and name.
    Raises InputError if one snapshot is of a plan and the other of an analysis.
    """
    if before.of_plan != after.of_plan:
        raise InputError(
            f"{before.name} and {after.name} are a plan and an analysis; compare two plans, or two "
            "files that are HLO dumps or that olla_xla analyze --json wrote"
        )
    changes = [
        TensorChange(*key, before.tensors.get(key, (0, 0)), after.tensors.get(key, (0, 0)))
        for key in sorted({*before.tensors, *after.tensors})
    ]
    changes = [c for c in changes if c.before != c.after]
    changes.sort(key=lambda c: (-abs(c.bytes), c.category, c.what, c.shape))
    return Difference(before, after, tuple(changes))


def load_snapshot(path: str | os.PathLike[str]) -> Snapshot | None:
    """Reads a plan or analysis file; returns None for a file of any other kind.
    Raises InputError if the file cannot be read, or is of another version.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    try:
        content: Any = json.loads(data) if data.lstrip()[:1] == b"{" else None
    except (ValueError, RecursionError):
        return None
    kind = content.get("format", "") if isinstance(content, dict) else ""
    if kind == FORMAT:
        if (version := content.get("version")) != VERSION:
            raise InputError(
                f"{path} has version {version} of the format, but this olla_xla reads "
                f"version {VERSION}; write the file again with olla_xla analyze --json"
            )
        return Snapshot.of_analysis(content, str(path))
    if str(kind).startswith("olla_xla.plan"):
        return Snapshot.of_plan_file(Plan.load(path), str(path))
    return None

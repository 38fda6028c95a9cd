"""Estimates of many models as JSON lines on disk, so that a run can be resumed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from benchmarks.papers.eager.estimate import Estimate, Estimates
from olla_xla.errors import InputError


@dataclasses.dataclass(frozen=True)
class ModelEstimates:
    """The estimates of one train step.

    Attributes:
      model, batch_size, optimizer: of the step. mode: of the estimate.
      target: what the rows of the compiled step are for, or "" where there are none.
      found: the rows.
    """

    model: str
    batch_size: int
    optimizer: str
    mode: str
    target: str
    found: Estimates

    @property
    def key(self) -> tuple[str, int, str, str, str]:
        """The fields that identify it."""
        return self.model, self.batch_size, self.optimizer, self.mode, self.target


def to_json(rows: Sequence[ModelEstimates]) -> str:
    """The estimates as text, a line for each model."""
    lines = ",\n".join(json.dumps(dataclasses.asdict(row)) for row in rows)
    return f"[\n{lines}\n]\n"


def from_json(text: str) -> list[ModelEstimates]:
    """What `to_json` wrote. Raises InputError if it is something else."""
    try:
        return [
            ModelEstimates(
                **{
                    **row,
                    "found": Estimates(
                        **{
                            **row["found"],
                            "rows": tuple(Estimate(**r) for r in row["found"]["rows"]),
                        }
                    ),
                }
            )
            for row in json.loads(text)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("this is not the JSON that estimate --out writes") from error

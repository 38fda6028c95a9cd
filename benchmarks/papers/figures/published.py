"""Values that the papers print, for the marks in our figures.

They are from the papers' abstracts and text. Values that can only be read off a plot are left out.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mark:
    """A published value.

    Attributes:
      label: beside it in a figure. value: in the figure's unit.
      batch_size: of the rows whose mean it stands beside, or None. x: where it stands on the
        horizontal axis, or None: a line across.
    """

    label: str
    value: float
    batch_size: int | None = None
    x: float | None = None


MARK_STYLES = ("--", ":", "-.")
"""Lines of a figure's marks of one colour, in their order."""

REORDERING = (
    Mark("paper, mean of batch 1", 22.5, batch_size=1),
    Mark("paper, at most, batch 1", 38.0, batch_size=1),
    Mark("paper, mean of batch 32", 10.1, batch_size=32),
)
"""Steiner et al. 2022, figure 7: peak reduction, %."""

FRAGMENTATION = (
    Mark("paper, mean of batch 1", 7.9, batch_size=1),
    Mark("paper, mean of batch 32", 26.1, batch_size=32),
)
"""Steiner et al. 2022, figure 8: fragmentation of the framework's allocator, %."""

TOTAL_REDUCTION = (
    Mark("paper, mean of batch 1", 30.4, batch_size=1),
    Mark("paper, mean of batch 32", 36.1, batch_size=32),
)
"""Steiner et al. 2022, section 5: total reduction, %."""

LAYERS_1000 = (
    Mark("paper: from 48G", 48 * 1024.0, x=1000),
    Mark("paper: to 7G", 7 * 1024.0, x=1000),
)
"""Chen et al. 2016, abstract: a ResNet of 1,000 layers, MB."""

LSTMS_SAY = "; the paper: more than four times less"
"""Chen et al. 2016, figure 6, of sublinear against sharing: a number without a place of its own."""

TIME_OF_SUBLINEAR = (Mark("paper: 30 % more", 1.30),)
"""Chen et al. 2016, abstract: step time against none, of the 1,000 layers."""

LESS_BY_PROFILE = (Mark("paper: up to 49.5 %", 49.5),)
"""Sekiyama et al. 2018, abstract: below the framework's memory pool, %."""

LESS_IN_INFERENCE = (Mark("paper: 12.6 %", 12.6), Mark("paper: 10.0 %", 10.0))
"""Sekiyama et al. 2018, figure 2b: less in inference of image networks, %."""

LESS_IN_RECURRENT_INFERENCE = (Mark("paper, inference: 14.6 %", 14.6),)
"""Sekiyama et al. 2018, figure 2d: less in inference of a network that translates, %."""

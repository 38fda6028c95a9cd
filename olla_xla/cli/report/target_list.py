"""The targets as a table."""

import olla_xla.targets as targets
from hlo import backend
from olla_xla.cli.report.tables import Table
from olla_xla.remat.cost.devices import SOURCES, device


def targets_table() -> Table:
    """Returns a table of all targets: memory, bandwidth, and rates by which times are predicted.
    Predicted times use the rates that kernels are assumed to sustain. They lie below the peak rates
    in the document that the last column names.
    """
    rows = []
    for name, platform in targets.TARGETS.items():
        if backend.platform(platform).is_host:
            rows.append((name, "this machine's CPU", *"-----", "measured when needed"))
            continue
        card = targets.card(name)
        rates = device(platform, card.kind)
        rows.append(
            (
                name,
                card.kind,
                f"{card.memory_bytes / 2**30:.1f}",
                f"{card.bytes_per_second / 1e12:.2f}",
                f"{rates.bytes_per_second / 1e12:.2f}",
                f"{rates.matrix_per_second / 1e12:,.0f}",
                f"{(rates.narrow_per_second or 0) / 1e12:,.0f}",
                SOURCES[rates.name],
            )
        )
    priced = ("priced TB/s", "priced TFLOP/s", "in 16 bits")
    headings = ("target:", "device:", "GiB", "TB/s", *priced, "peaks from:")
    return Table(headings, rows)

"""The table of largest batches."""

import pytest

from olla_xla.cli.report.batches import batch_table, batch_verdict
from olla_xla.compile.max_batch import LargestBatch, MaxBatch

pytestmark = pytest.mark.quick

MB = 2**20


def test_a_row_for_each_way():
    xla = LargestBatch("xla", 10, 100 * MB, 11, 111 * MB, predicted_bytes=100 * MB)
    planned = LargestBatch("planned", 15, 100 * MB, 16, 107 * MB, predicted_bytes=104 * MB)
    again = LargestBatch("recomputed", 0, 0, 1, 120 * MB, next_is_predicted=True)
    found = MaxBatch(105 * MB, xla, planned, again, (("xla", 8, 1), ("planned", 8, 1)), 61.4)
    assert batch_table(found, "t").rows == [
        ("XLA alone", "10", "1.00 x", "100.0", "0.0 %", "11", "111.0", "assigned"),
        ("planned", "15", "1.50 x", "100.0", "0.0 %", "16", "107.0", "assigned"),
        ("with recomputation", "0", "0.00 x", "-", "-", "1", "120.0", "predicted, the least found"),
    ]  # fmt: skip
    assert "1 sizes were compiled as far as the schedule, 61 s in all" in batch_verdict(found)

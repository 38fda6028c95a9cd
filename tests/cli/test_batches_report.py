"""The table of largest batches."""

import dataclasses

import pytest

from olla_xla.cli.commands.max_batch import batch_table, batch_verdict
from olla_xla.cli.report.tables import change, more
from olla_xla.tools.max_batch import LargestBatch, MaxBatch

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
    found = dataclasses.replace(found, compiles=9)
    assert batch_verdict(found).endswith("nothing was run. The search took 9 compiles and 61 s.")
    assert "More compiles" not in batch_verdict(found)


def test_an_answer_between_two_sizes_says_so_and_how_to_go_on():
    xla = LargestBatch("xla", 48, 100 * MB, 80, 111 * MB, is_largest=False, expected=56)
    planned = LargestBatch("planned", 64, 100 * MB, 0, 0, is_largest=False, expected=64)
    again = LargestBatch("recomputed", 64, 90 * MB, 0, 0, is_largest=False, expected=96)
    found = MaxBatch(105 * MB, xla, planned, again, (), 61.4, 6)
    assert [row[5:] for row in batch_table(found, "t").rows] == [
        ("80", "111.0", "assigned"),
        ("-", "-", "not compiled"),
        ("-", "-", "not compiled"),
    ]
    told = batch_verdict(found, compiles=6, devices=8)
    assert "XLA alone: between 48 and 72; a linear fit of the totals predicts 56." in told
    assert "planned: 64 fits; a linear fit of the totals predicts no larger batch." in told
    assert "with recomputation: at least 64; a linear fit of the totals predicts 96." in told
    assert "--start=6 --compiles=12." in told


def test_what_just_does_not_fit_is_told_from_what_does():
    xla = LargestBatch("xla", 8, 64 * MB - 90, 9, 64 * MB + 5000)
    found = MaxBatch(64 * MB, xla, xla, None, (), 1.0)
    assert batch_table(found, "t").rows[0][6] == "64.005"


def test_changes_have_signs():
    assert more(3, 2) == 0.5 and more(0, 0) == 0.0
    assert [change(x) for x in (0.25, -0.061, 0.0, -0.0001)] == [
        "+25.0 %", "-6.1 %", "0.0 %", "0.0 %",
    ]  # fmt: skip

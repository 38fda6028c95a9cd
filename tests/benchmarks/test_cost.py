"""Predicted step times beside measured ones."""

import pytest

from benchmarks.commands import cost
from benchmarks.commands.cost import cost_summary, cost_table
from olla_xla.errors import InputError
from olla_xla.tools.measure.records import RunRequest
from tests.support.measurements import measured


def test_predictions_are_held_against_measurements():
    request = RunRequest("mlp", 8, "adam", steps=3, planned=False)
    rows = [(request, measured(predicted_seconds=p)) for p in (0.5, 1.1)]
    assert [row[3:] for row in cost_table(rows).rows] == [
        ("500.0", "1000.0", "-50.0"),
        ("1100.0", "1000.0", "10.0"),
    ]
    assert cost_summary(rows).startswith("Predicted over measured: 0.50 to 1.10, off by 1.55")
    with pytest.raises(InputError, match="case 'gpt/1' is not model/batch_size/optimizer"):
        cost._request("gpt/1", 3)

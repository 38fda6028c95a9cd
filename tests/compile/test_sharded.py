"""Steps over several devices: loops with collectives in them do without stacks too."""

import functools
import json
import os
import subprocess
import sys

import pytest

from tests.support.compiles import h100_device


def printed(module, *arguments):
    """The lines of JSON that a module prints in a process that has its own number of devices."""
    run = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@functools.cache
def on_cpu():
    """What is told of each module of tests.support, all run by one process."""
    names = "sharded", "sharded_mlp", "gathered", "unrolled", "tensor_parallel"
    return _told(printed("tests.support.sharded", *names))


@functools.cache
def on_cards():
    """The same of those that are compiled for cards that are not there."""
    h100_device()
    return _told(printed("tests.support.sharded", "h100", "unrolled", "tensor_parallel"))


def _told(rows):
    found = {}
    for row in rows:
        if "module" in row:
            told = found[row["module"]] = []
        else:
            told.append(row)
    return found


def test_a_scan_over_sharded_layers_is_planned_bit_identically():
    rows = on_cpu()["sharded"]
    assert len(rows) == 2
    for row in rows:
        assert row["same"], row
        assert row["predicted"] == row["assigned"] <= row["xla"]
    assert rows[1]["planned"] and rows[1]["stacks"] > 0
    assert rows[1]["assigned"] < rows[1]["xla"]


def test_bytes_are_predicted_exactly_where_devices_exchange_tables_and_sums():
    """All-to-alls and all-reduces of several arrays have tables, which XLA puts behind its heap."""
    (row,) = on_cpu()["sharded_mlp"]
    assert row["planned"] and row["same"], row
    assert row["predicted"] == row["assigned"] < row["xla"] == row["predicted_xla"]


def test_what_the_backward_loop_gathers_again_is_there_for_nothing():
    """A layer's weights: with them what was kept of the layer can be computed again."""
    (row,) = on_cpu()["gathered"]
    assert row["same"] and row["planned"] and row["stacks"] > 0, row
    assert row["predicted"] == row["assigned"] < row["xla"]


def test_what_the_backward_pass_gathers_again_is_there_for_nothing():
    """Beside loops: of layers one after the other, of which products were kept."""
    (row,) = on_cpu()["unrolled"]
    assert row["same"], row
    assert row["predicted"] == row["assigned"] < 0.6 * row["xla"]


@pytest.mark.cuda13
def test_gathers_of_cards_that_are_not_there_run_as_often_as_before():
    (row,) = on_cards()["unrolled"]
    assert row["planned"] and not row["reason"], row
    assert row["clones"] and row["gathers"] == row["gathers_of_xla"]
    assert row["predicted"] == row["assigned"] < 0.52 * row["predicted_xla"]  # 0.55, weights kept
    assert max(row["overhead"], row["slower"]) <= 0.1


def test_collectives_run_again_where_that_is_asked_for():
    """A layer's activations lie behind what devices exchange: without that nothing goes."""
    kept, gone = rows = on_cpu()["tensor_parallel"]
    for row in rows:
        assert row["same"], row
        assert row["predicted"] == row["assigned"] <= row["xla"]
    assert not kept["stacks"] and gone["stacks"]
    assert gone["assigned"] < 0.9 * kept["assigned"]


@pytest.mark.cuda13
def test_collectives_of_loops_for_cards_that_are_not_there():
    """What the backward loop exchanges of its stacks itself is there for nothing, as in "bare".

    Where no collective may run again, what one gives is kept in place of what is made of it.
    """
    kept, gone, bare = on_cards()["tensor_parallel"]
    for row in (kept, gone, bare):
        assert row["planned"] and not row["reason"], row
        assert row["predicted"] == row["assigned"] < row["predicted_xla"]
        assert row["overhead"] <= 1
    assert kept["stacks"] and gone["stacks"] and bare["stacks"]
    assert gone["assigned"] < 0.9 * kept["assigned"]

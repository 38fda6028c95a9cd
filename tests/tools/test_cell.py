"""One cell of a sweep, answered in this process with work that is given."""

import json
import os
import types

import jax
import jax.numpy as jnp
import pytest

from olla_xla.errors import InputError, OllaError
from olla_xla.tools.sweep import cell as cells
from olla_xla.tools.sweep.grid import Cell, SweepSettings

pytestmark = pytest.mark.quick

REQUEST = {
    "model": "mlp", "batch_size": 8, "target": "cpu", "optimizer": "adam", "mode": "order",
    "settings": {"time_limit": 5.0, "step_limit": 100, "seed": 3, "cell_timeout": 60.0},
}  # fmt: skip


@pytest.fixture
def answered(monkeypatch, capsys):
    """What `answer` prints of a piece of work, as a row."""
    monkeypatch.setattr(cells, "_end_with_parent", lambda: None)
    monkeypatch.setattr(cells.targets, "prepare_environment", lambda name: None)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/there")

    def run(work):
        assert cells.answer([json.dumps(REQUEST)], work) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_the_row_of_a_cell(answered):
    seen = []

    def work(cell, settings):
        seen.append((cell, settings))
        print("something else")
        return {"xla_bytes": 12}

    row = answered(work)
    assert seen == [(Cell("mlp", 8, "cpu", "adam", "order"), SweepSettings(5.0, 100, 3, 60.0))]
    assert row.pop("seconds") >= 0 and row == {"xla_bytes": 12}


def test_code_is_compiled_quickly_unless_flags_say_how(answered, monkeypatch):
    answered(lambda cell, settings: {})
    flags = "--xla_dump_to=/there --xla_backend_optimization_level=0"
    assert os.environ["XLA_FLAGS"] == flags
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    answered(lambda cell, settings: {})
    assert os.environ["XLA_FLAGS"] == "--xla_backend_optimization_level=3"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OllaError("two\n  lines"), "two lines"),
        (InputError("no such model"), "no such model"),
        (MemoryError(), "out of memory"),
    ],
)
def test_what_goes_wrong_is_the_row(answered, error, said):
    def work(cell, settings):
        raise error

    row = answered(work)
    assert row.pop("seconds") >= 0 and row == {"error": said}


def test_a_fault_of_the_program_is_no_row(answered):
    with pytest.raises(ZeroDivisionError):
        answered(lambda cell, settings: {"xla_bytes": 1 // 0})


def test_what_does_not_fit_is_said_in_gibibytes():
    target = types.SimpleNamespace(name="h100", memory_bytes=3 * 2**30)
    cells._check_fit("planned", 3 * 2**30, target)
    cells._check_fit("planned", 2**50, types.SimpleNamespace(name="cpu", memory_bytes=None))
    with pytest.raises(InputError, match=r"planned 4\.5 GiB, h100 has 3\.0 GiB; take a smaller"):
        cells._check_fit("planned", 9 * 2**29, target)


def test_bytes_of_arguments():
    shapes = {"w": jax.ShapeDtypeStruct((3, 5), jnp.bfloat16), "n": 4, "x": jnp.zeros((), "int8")}
    assert cells._argument_bytes(shapes) == 3 * 5 * 2 + 1


@pytest.mark.parametrize(("predicted", "off"), [(110, 0.1), (90, -0.1), (100, 0.0)])
def test_the_error_of_a_prediction(predicted, off):
    assert cells._off(predicted, 100) == pytest.approx(off)
    assert cells._off(predicted, 0) == 0.0

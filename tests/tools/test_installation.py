"""What is said where something is missing works where the package came from."""

import importlib.metadata
import json

import pytest

from olla_xla import version
from olla_xla.solvers.linear import Limits, Model
from olla_xla.solvers.solve import solve_with
from olla_xla.tools.sweep.local import _available

pytestmark = pytest.mark.quick


class Installed:
    def __init__(self, text):
        self.text = text

    def read_text(self, name):
        assert name == "direct_url.json"
        return self.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "pip install 'olla-xla[report]'"),
        (
            json.dumps({"url": "file:///src/olla_xla", "dir_info": {}}),
            "pip install 'olla-xla[report] @ file:///src/olla_xla'",
        ),
        (
            json.dumps({"url": "https://host/olla.git", "vcs_info": {"vcs": "git"}}),
            "pip install 'olla-xla[report] @ git+https://host/olla.git'",
        ),
    ],
)
def test_installed(monkeypatch, tmp_path, text, said):
    monkeypatch.setattr(version, "__file__", str(tmp_path / "olla_xla" / "version.py"))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed(text))
    assert version.to_install("report") == said


def test_in_a_checkout():
    assert version.to_install("report") == "uv sync --extra report"


def test_a_solver_that_is_an_extra_says_how_to_get_it():
    def load():
        raise ModuleNotFoundError("No module named 'gurobipy'", name="gurobipy")

    result = solve_with(Model(), Limits(), [("gurobi", load)])
    assert result.failures == ("gurobi: gurobipy is missing; uv sync --extra gurobi",)


def test_free_memory_is_a_number_of_bytes():
    assert 2**20 < _available() < 2**50

"""What is said where something is missing works where the package came from."""

import importlib.metadata
import json
import sys

import pytest

from olla_xla import version
from olla_xla.solvers.linear import LinearModel
from olla_xla.solvers.solve import solve

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


def test_a_plan_without_the_extra_solver_says_so(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("ortools")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.delitem(sys.modules, "olla_xla.solvers.backends.cpsat", raising=False)
    (said,) = solve(LinearModel(), backends=["cpsat"]).failures
    assert said.startswith("cpsat: ortools")
    assert said.endswith(" is missing; uv sync --extra cpsat")

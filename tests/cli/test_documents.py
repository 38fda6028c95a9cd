"""Documents say what there is: options, variables, figures that commands print."""

import dataclasses
import re
from pathlib import Path

import pytest

from docs.commands import COMMANDS, Figure, _differs
from olla_xla.cli.commands import COMMANDS as NAMES
from olla_xla.compile import environment
from olla_xla.problem.options import PlanOptions

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
FIGURES = [figure for command in COMMANDS for figure in command.figures]


def text(name):
    return (ROOT / name).read_text()


def test_the_api_page_has_every_option_with_its_default():
    page = text("docs/api.md")
    for field in dataclasses.fields(PlanOptions):
        default = repr(field.default).replace("'", '"')
        assert f"| `{field.name}` | `{default}` |" in page, field.name


def test_every_switch_of_the_environment_is_told():
    names = set(re.findall("OLLA_XLA_[A-Z]+", Path(environment.__file__).read_text()))
    assert names and all(name in text("docs/guides/production.md") for name in names)


def test_the_page_of_the_command_line_has_every_command():
    page = text("docs/command-line.md")
    assert all(f"`olla_xla {name}" in page for name in NAMES)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.said)
def test_figures_that_are_compared_stand_in_their_documents(figure):
    found = re.search(figure.said, text(figure.document))
    assert found is not None and float(found[1].replace(",", "")) > 0


def test_figures_that_differ_are_told():
    figure = Figure("README.md", r"\| cpu \| resnet50 \| ([\d.,]+)", r"total ([\d.,]+)")
    assert _differs(figure, "the total 899.6 MB") == ""
    assert "README.md says 899.6, printed were 700.0" in _differs(figure, "the total 700.0 MB")
    assert "the output has no figure" in _differs(figure, "nothing")

"""Documents say what there is: options, variables, figures that commands print."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import olla_xla
from docs.commands import COMMANDS, PAPERS, Figure, _differs, paper_commands
from olla_xla.cli.commands import COMMANDS as NAMES
from olla_xla.compile import environment
from olla_xla.problem.options import PlanOptions

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
FIGURES = [figure for command in COMMANDS for figure in command.figures]


def text(name):
    return (ROOT / name).read_text()


def test_the_api_page_has_every_option_with_its_default():
    page = text("docs/api/planning.md")
    for field in dataclasses.fields(PlanOptions):
        default = repr(field.default).replace("'", '"')
        assert f"| `{field.name}` | `{default}` |" in page, field.name


def test_the_api_pages_have_what_the_wheel_has():
    pages = "".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    named = re.findall(r"^::: (\S+)", pages, re.MULTILINE)
    assert all(name.startswith("olla_xla.") for name in named)
    functions = [n for n in olla_xla.__all__ if inspect.isfunction(getattr(olla_xla, n))]
    assert len(functions) > 5 and {f"olla_xla.{name}" for name in functions} <= set(named)


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


def papers_rows():
    """The rows of the papers' tables that have a command in each: cells."""
    rows, inside = [], False
    for line in text(PAPERS).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| claim or technique | where | command | result |"):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and set(cells[0]) != {"-"}:
            rows.append(cells)
    return rows


def test_every_row_of_the_papers_tables_has_all_that_it_needs():
    rows = papers_rows()
    assert len(rows) > 35
    for what, where, command, result in rows:
        assert re.fullmatch(r"`(olla_xla|python -m benchmarks) [^`]+`", command), what
        for path in re.findall(r"`([^`]+/[^`]+\.py)`", where):
            assert (ROOT / path).is_file(), path
        assert re.match(r"(confirmed|met|missed|not shown)\b", result), what
        if not re.match("confirmed(?! in part)", result):  # with its reason, or both figures
            assert len(result) > 30 and re.match(r"[a-z ]+[:;,]? ", result), what


def test_the_papers_commands_are_run():
    commands = [" ".join(command.words) for command in paper_commands()]
    assert len(commands) == len(set(commands)) > 12
    for *_, command, _ in papers_rows():
        assert any(command.strip("`").endswith(words.removeprefix("-m ")) for words in commands)


def test_figures_that_differ_are_told():
    figure = Figure("README.md", r"([\d.]+) MB become", r"total ([\d.,]+)")
    assert _differs(figure, "the total 899.6 MB") == ""
    assert "README.md says 899.6, printed were 700.0" in _differs(figure, "the total 700.0 MB")
    assert "the output has no figure" in _differs(figure, "nothing")

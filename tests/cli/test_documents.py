"""Documents say what there is: options, variables, figures that commands print."""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest
from absl import flags

import olla_xla
from docs.commands import PAPERS, Command, commands, differs, paper_commands
from olla_xla.cli.commands import COMMANDS as NAMES
from olla_xla.compile import environment
from olla_xla.problem.options import PlanOptions

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]


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


def test_documents_have_commands_for_their_figures():
    found = [command for document in DOCUMENTS for command in commands(document)]
    assert len([command for command in found if command.text]) >= 5
    assert {"README.md", "docs/guides/first-plan.md"} <= {c.document for c in found if c.text}
    for command in found:
        assert command.program or command.words[:2] == ("-m", "olla_xla"), command.name


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


def test_the_papers_commands_have_flags_that_there_are():
    commands = [" ".join(command.words) for command in paper_commands()]
    assert len(commands) == len(set(commands)) > 12
    for *_, command, _ in papers_rows():
        assert any(command.strip("`").endswith(words.removeprefix("-m ")) for words in commands)
    for command in paper_commands():
        package, name, *arguments = command.words[1:]
        within = "olla_xla.cli" if package == "olla_xla" else package
        values = flags.FlagValues()
        importlib.import_module(f"{within}.commands.{name}").define_flags(values)
        values(["", *arguments])


TABLE = "function  MB\n--------  ----\nstep      21.8\n...\nsum 1,021.8 in 1.6 s\n"


@pytest.mark.parametrize(
    ("said", "printed", "wrong"),
    [
        ("899.6 MB become 492.0.", "total 899.6, planned 480.9 MB", ""),
        ("899.6 MB become 492.0.", "total 899.6, planned 700.0 MB", "says 492.0"),
        (TABLE, "function MB\n---- ---\nstep 22.5\nx\nsum 1,000 in 9 s", ""),
        (TABLE, "function MB\n---- ---\nstep 25.5\nx\nsum 1,000 in 9 s", "step [21.8]"),
        (TABLE, "function MB\n---- ---\nstep 21.8\nx\nsum 1,000 out 9 s", "[in]"),
        (TABLE, "", "[function]"),
    ],
)
def test_texts_that_differ_are_told(said, printed, wrong):
    command = Command("README.md", ("-m", "olla_xla"), said, free="1.6")
    found = differs(command, printed)
    assert (found == "") == (wrong == "") and wrong in found


@pytest.mark.parametrize(
    "text", ["<!-- prints olla_xla -->\n\nnone", "<!-- prints: olla_xla -->\n\nno number"]
)
def test_a_comment_without_a_command_or_a_figure_is_an_error(text, monkeypatch):
    monkeypatch.setattr("docs.commands._text", lambda document: text)
    with pytest.raises(ValueError, match="README.md"):
        commands("README.md")

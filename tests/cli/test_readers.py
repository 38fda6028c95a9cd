"""What users give to be read: whatever it is, it ends in one line, and in time."""

import gzip
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from hlo import files
from hlo.dumps.read import read_module
from hlo.files import read_own, read_regular, unpacked
from hlo.module import HloError
from hlo.text import from_hlo_text, from_stablehlo
from olla_xla.cli.main import main
from olla_xla.errors import GraphError, InputError
from olla_xla.place.trace import read_trace
from olla_xla.tools.to_networkx import read_graphml

pytestmark = pytest.mark.quick

DEEP = 100_000
COMMANDS = {
    "module": lambda p: ["plan", f"--hlo={p}"],
    "module as it is": lambda p: ["analyze", f"--hlo={p}", "--nocompile"],
    "graph": lambda p: ["graph", f"--graph={p}"],
    "trace": lambda p: ["place", f"--trace={p}"],
    "plan": lambda p: ["plan", "--model=mlp", f"--plan={p}"],
    "snapshot": lambda p: ["diff", str(p), str(p)],
    "case": lambda p: ["objection", str(p)],
}


def _refused(arguments, capsys):
    """The one line that a command says of what it cannot read."""
    assert main(["olla_xla", *arguments]) == 2
    *progress, error = capsys.readouterr().err.splitlines()
    assert error.startswith("olla_xla ") and all(line.startswith("  ") for line in progress)
    return error


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_regular_file(command, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        assert "not a regular file" in _refused(COMMANDS[command](path), capsys)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "data",
    [
        b"[" * DEEP,
        b'{"a":' * DEEP,
        b"<a>" * DEEP,
        b"\x0a" * DEEP,
        b"",
        b"\xff\xfe\x00",
        b"PK\x03\x04",
    ],
    ids=["lists", "objects", "elements", "fields", "empty", "binary", "zip"],
)
def test_what_is_something_else(command, data, tmp_path, capsys):
    path = tmp_path / "x"
    path.write_bytes(data)
    _refused(COMMANDS[command](path), capsys)


@pytest.mark.parametrize("kind", ["shape", "layout", "literal", "nested"])
def test_text_that_nests_deeply_does_not_reach_xla(kind):
    """Its parser has no limit: it would end the process."""
    texts = {
        "shape": f"HloModule m\nENTRY e {{ ROOT p = {'(' * DEEP}f32[]{')' * DEEP} parameter(0) }}",
        "layout": f"HloModule m, entry_computation_layout={{{'(' * DEEP}}}",
        "literal": f"HloModule m\nENTRY e {{ ROOT c = f32[1] constant({'{' * DEEP}1) }}",
        "nested": f'HloModule m, x="{")" * DEEP}\\""\nENTRY e {{ ROOT r = f32[] {"add(" * DEEP}',
    }
    with pytest.raises(HloError, match="500 nested brackets"):
        from_hlo_text(texts[kind])
    with pytest.raises(HloError, match="500 nested brackets"):
        from_stablehlo(f"module @m attributes {{a = {'[' * DEEP}{']' * DEEP}}} {{}}")


def test_arrows_groups_and_text_are_no_brackets():
    lines = [
        f'  a{k} = f32[] add(a{k - 1}, p), metadata={{op_name="((<{k}"}}' for k in range(1, 999)
    ]
    text = "\n".join(["HloModule m, entry_computation_layout={(f32[])->f32[]}", "ENTRY e {"])
    text += "\n  p = f32[] parameter(0)\n  a0 = f32[] add(p, p)\n" + "\n".join(lines)
    assert from_hlo_text(f"{text}\n  ROOT r = f32[] copy(a998)\n}}\n")


def test_xlas_second_line_says_what_is_wrong():
    with pytest.raises(HloError, match="Unknown opcode: addd"):
        from_hlo_text(
            "HloModule m\nENTRY e {\n p = f32[4] parameter(0)\n ROOT r = f32[4] addd(p, p)\n}"
        )


def test_what_unpacks_to_too_much(tmp_path, monkeypatch):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(2**24)))
    with pytest.raises(OSError, match="larger than 1,000 bytes"):
        unpacked(path.read_bytes(), 1000)
    assert unpacked(path.read_bytes()) == bytes(2**24) and unpacked(b"plain") == b"plain"
    monkeypatch.setattr(unpacked, "__defaults__", (1000,))
    for read, error in ((read_module, HloError), (read_graphml, InputError)):
        with pytest.raises(error, match="larger than 1,000 bytes"):
            read(path)


def test_a_case_that_unpacks_to_too_much(tmp_path, monkeypatch, capsys):
    path = tmp_path / "case.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("objection.txt", "a\n" * 2**16)
    monkeypatch.setattr("olla_xla.compile.objection.LARGEST", 1000)
    assert "more than 1,000 bytes" in _refused(["objection", str(path)], capsys)


def test_sizes_are_bounded_before_reading(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(files.LARGEST + 1)
    for read in (read_regular, read_own):
        with pytest.raises(OSError, match="larger than"):
            read(path)


def _graphml(kind, value):
    return (
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        f'<key id="b" for="edge" attr.name="bytes" attr.type="{kind}"/>'
        '<key id="k" for="edge" attr.name="buffer" attr.type="long"/>'
        '<graph edgedefault="directed"><node id="a"/><node id="c"/>'
        f'<edge source="a" target="c"><data key="b">{value}</data></edge></graph></graphml>'
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *[("long", v) for v in (2**63, -(2**70), "9" * 5000, "NaN", "text", "", "1.5")],
        *[("double", v) for v in ("NaN", "inf", "1e300", "-1")],
        ("string", "text"), ("boolean", "maybe"), ("nothing", "1"),
    ],
)  # fmt: skip
def test_sizes_in_graphml_that_are_none(kind, value, tmp_path, capsys):
    path = tmp_path / "g.graphml"
    path.write_text(_graphml(kind, value))
    with pytest.raises((InputError, GraphError)):
        read_graphml(path)
    assert main(["olla_xla", "graph", f"--graph={path}"]) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.filterwarnings("ignore:No key type")
def test_random_changes_of_graphml(tmp_path):
    """Words and numbers are exchanged: it is read, or refused by one of our errors."""
    random = np.random.default_rng(0)
    words = _graphml("long", 8).replace('"', ' " ').replace("<", " < ").split(" ")
    path = tmp_path / "g.graphml"
    for _ in range(300):
        changed = list(words)
        for at in random.integers(0, len(words), 2):
            changed[at] = random.choice(["", "NaN", "-1", str(2**80), "string", "[", *words])
        path.write_text(" ".join(changed).replace(' " ', '"').replace(" < ", "<"))
        try:
            read_graphml(path)
        except (InputError, GraphError):
            pass


@pytest.mark.parametrize(
    "value", ["9" * 5000, str(2**63), "nan", "1e3", "0x10", "-1", "x" * 200_000]
)
def test_sizes_in_traces_that_are_none(value, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"id,lower,upper,size\na,0,2,{value}\n")
    with pytest.raises(InputError):
        read_trace(path)


def test_calls_that_nest_deeply():
    """Each computation calls the next one; read in a process with a stack as it is."""
    code = (
        "from hlo.text import from_hlo_text\nfrom hlo.module import HloError, parse_module_proto\n"
        "from hlo.dumps.read import read_module\nimport tempfile, pathlib\n"
        "n = 3000\nlines = ['HloModule m', 'call0 {', ' ROOT p = f32[] parameter(0)', '}']\n"
        "for k in range(1, n):\n"
        "    lines += [f'call{k} {{', ' p = f32[] parameter(0)',"
        " f' ROOT r = f32[] call(p), to_apply=call{k - 1}', '}']\n"
        "lines += ['ENTRY e {', ' p = f32[] parameter(0)',"
        " f' ROOT r = f32[] call(p), to_apply=call{n - 1}', '}']\n"
        "path = pathlib.Path(tempfile.mkdtemp(), 'deep.txt')\npath.write_text('\\n'.join(lines))\n"
        "try:\n    read_module(path)\n    print('read')\n"
        "except HloError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert "too deeply" in done.stdout or "read" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "--model=mlp", "--seed=-1"], "--seed"),
        (["plan", "--model=mlp", "--topology=2x2"], "--topology=2x2 is for TPUs"),
        (["analyze", "--model=mlp", "--topology=2x2"], "--topology=2x2 is for TPUs"),
    ],
)
def test_what_cannot_be_meant(arguments, said, capsys):
    assert said in _refused(arguments, capsys)


def test_a_snapshot_of_another_kind(tmp_path, capsys):
    path = tmp_path / "x.json"
    for found in ({"format": 3}, {"format": ["x"]}, {"format": "olla_xla.plan", "version": {}}):
        path.write_text(json.dumps(found))
        _refused(["diff", str(path), str(path)], capsys)

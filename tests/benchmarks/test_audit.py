"""The benchmark of audits: clean executables, and faults that are all found."""

import json

from benchmarks.__main__ import main
from benchmarks.audit.faults import MODULES


def test_functions_are_clean_and_faults_are_found(tmp_path, capsys):
    out = tmp_path / "rows.json"
    steps = "--steps=function:scan's gradient,function:two outputs"
    assert main(["benchmarks", "audit", steps, "--faults=8", f"--out={out}"]) == 0
    found = json.loads(out.read_text())
    assert [row["findings"] for row in found["rows"]] == [[], []]
    assert {kind for _, kind, _, _ in found["faults"]} == set(MODULES)
    assert "with findings" in capsys.readouterr().out

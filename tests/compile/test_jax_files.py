"""The tool that runs JAX's own tests both ways: what passes under jax.jit only is named."""

import json
import textwrap

from tests import jax_files


def test_what_passes_under_jit_only_is_named(tmp_path, capsys, monkeypatch):
    (tmp_path / "some_test.py").write_text(
        textwrap.dedent("""
            import jax, jax.numpy as jnp

            def test_alike():
                assert jax.jit(lambda x: x + 1)(jnp.ones(3)).sum() == 6

            def test_only_jit():
                assert "olla_xla" not in type(jax.jit(abs)).__module__, "it is planned"

            def test_neither():
                assert jax is None
        """)
    )
    out = tmp_path / "out.json"
    assert jax_files.main([str(tmp_path), "some_test", f"--out={out}"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("some_test: jit 2, plan 1 of 3\n")
    assert "  test_only_jit: " in printed and "test_alike" not in printed
    (row,) = json.loads(out.read_text())
    assert row["plan"]["test_neither"][0] == row["jit"]["test_neither"][0] == "failed"

    asked = []

    def alike(path, way, seconds, more):
        asked.append((way, more))
        return {"test_alike": ("passed", "")}

    monkeypatch.setattr(jax_files, "outcomes", alike)
    assert jax_files.main([str(tmp_path), "some_test", "--select=alike"]) == 0
    assert asked == [(way, ["-k", "alike"]) for way in jax_files.WAYS]

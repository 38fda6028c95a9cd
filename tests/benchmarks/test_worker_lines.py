"""Workers: what they print is read as it comes, however much they complain, and errors are told."""

import textwrap

import pytest

from benchmarks.worker_lines import worker_lines
from olla_xla.errors import OllaError

pytestmark = pytest.mark.quick


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Writes the text of a worker; returns the lines that it prints."""

    def run(text):
        (tmp_path / "a_worker.py").write_text("import json, sys\n" + textwrap.dedent(text))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return worker_lines("a_worker", {"times": 3}, "the worker")

    return run


def test_lines_are_read_though_more_is_written_to_stderr_than_a_pipe_holds(worker):
    lines = worker("""
        for k in range(json.loads(sys.argv[1])["times"]):
            print("x" * 2**20, file=sys.stderr)
            print("not for us")
            print(json.dumps({"k": k}), flush=True)
    """)
    assert list(lines) == [{"k": 0}, {"k": 1}, {"k": 2}]


def test_what_was_printed_before_an_error_is_read_and_its_last_line_told(worker):
    lines = worker("""
        print('{"k": 0}', flush=True)
        raise ValueError("too many of them")
    """)
    assert next(lines) == {"k": 0}
    with pytest.raises(OllaError, match=r"^the worker ended: ValueError: too many of them$"):
        next(lines)


def test_a_worker_that_nobody_reads_any_more_is_killed(worker, tmp_path):
    lines = worker(f"""
        import time
        print('{{"k": 0}}', flush=True)
        time.sleep(600)
        open({str(tmp_path / "went on")!r}, "w")
    """)
    assert next(lines) == {"k": 0}
    lines.close()  # would wait ten minutes for it otherwise
    assert not (tmp_path / "went on").exists()

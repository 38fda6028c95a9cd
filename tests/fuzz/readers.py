"""Coverage-guided fuzzing of what reads files of strangers, with atheris; run as a program.

    python -m tests.fuzz.readers plan CORPUS -max_total_time=600

A reader may refuse its input, by the error that it says it raises, and do nothing else.
"""

import os
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["hlo", "olla_xla", "csv", "json"]):
    from hlo.dumps.read import read_module
    from hlo.module import HloError, module_from_bytes
    from olla_xla.compile import plan_store
    from olla_xla.errors import InputError, PlanFileError
    from olla_xla.place.trace import read_trace
    from olla_xla.problem.plan import Plan, dumps, loads

_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
_FILE = Path(tempfile.mkdtemp(dir=_MEMORY)) / f"{'0' * 32}.plan"
_HLO = """HloModule m, is_scheduled=true
ENTRY e {
  p = f32[8] parameter(0)
  a = f32[8] add(p, p)
  ROOT r = (f32[8]) tuple(a)
}
"""


def _on_disk(data):
    _FILE.write_bytes(data)
    return _FILE


def plan(data):
    try:
        loads(data)
    except PlanFileError:
        pass


def stored(data):
    try:
        plan_store.read(_on_disk(data))
    except PlanFileError:
        pass


def trace(data):
    try:
        read_trace(_on_disk(data))
    except InputError:
        pass


def proto(data):
    try:
        module = module_from_bytes(data)
        assert module.fingerprint and module.order is not None
    except HloError:
        pass


def dump(data):
    """A proto as a file: with its calls made single, its copies and a schedule."""
    try:
        proto_or_text = read_module(_on_disk(b"\x00" + data if data[:1].isalpha() else data))
        assert proto_or_text
    except HloError:
        pass


READERS = {"plan": plan, "stored": stored, "trace": trace, "proto": proto, "dump": dump}


def seeds(name):
    """Inputs that are read without complaint, to start from."""
    from hlo.text import from_hlo_text

    made = Plan(
        module="m", fingerprint="f", target="cpu", order={"e": ("a",)}, offsets={"a": (0, 8)},
        xla_bytes=1, xla_predicted_bytes=1, predicted_bytes=1, peak_bytes=1, least_peak_bytes=1,
        lower_bound_bytes=1,
    )  # fmt: skip

    if name == "stored":
        plan_store.write(_FILE, made)
        return [_FILE.read_bytes()]
    if name == "trace":
        return [b"id,lower,upper,size\na,0,2,8\nb,1,3,16\n", b"buffer_id,start,end,size\n0,0,1,4\n"]
    return [dumps(made)] if name == "plan" else [from_hlo_text(_HLO)]


def main():
    name, corpus, *rest = sys.argv[1:]
    os.makedirs(corpus, exist_ok=True)
    for k, data in enumerate(seeds(name)):
        (Path(corpus) / f"seed{k}").write_bytes(data)
    atheris.Setup([sys.argv[0], corpus, *rest], READERS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()

import importlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlo import gpu_executable
from hlo.buffer_assignment import assignment_from_bytes, read_dump
from hlo.gpu_executable import read_gpu_executable
from hlo.gpu_thunks import Flow
from hlo.module import HloError, parse_module_proto
from hlo.slices import Slice
from hlo.wire import Message
from olla_xla.memory.snappy import unsnapped
from tests.support.gpu_executables import STEPS, compiled, read, serialized

pytestmark = pytest.mark.cuda13

NAMES = [*STEPS, "exchanged"]


def test_a_name_that_is_no_text_is_an_error():
    assert Message(b"\x0a\x02ab").text(1) == "ab"
    with pytest.raises(HloError, match="field 1 is not text"):
        Message(b"\x0a\x01\xff").text(1)


@pytest.mark.parametrize("name", NAMES)
def test_slices_are_those_that_xla_reads_back(name):
    """By jaxlib's own reader of executables, which gives every thunk and its operands."""
    try:
        dialect = importlib.import_module("jax._src.lib").thunky_dialect
        ir = importlib.import_module("jax._src.lib.mlir").ir
        assert dialect is not None
    except (ImportError, AttributeError, AssertionError):
        pytest.skip("this jaxlib does not read executables")
    context = ir.Context()
    dialect.register_dialect(context)
    module = dialect.jax_executable_to_mlir(serialized(name), context)
    proto = Message(dialect.mlir_module_to_gpu_executable_proto(module))
    theirs = gpu_executable._sequence(proto.messages(13))

    def slices(thunks):
        return [a.slice for t in thunks for below in t.below() for a in below.accesses]

    _, ours = read(name)
    pairs = list(zip(slices(ours.thunks), slices(theirs), strict=True))
    assert pairs and all((a.offset, a.size) == (b.offset, b.size) for a, b in pairs)
    renamed = {(a.allocation, b.allocation) for a, b in pairs}  # it counts arguments first
    assert len(renamed) == len({a for a, _ in renamed}) == len({b for _, b in renamed})
    sizes = {a.integer(1): a.integer(2) for a in Message(proto.blob(10)).messages(1)}
    assert all(ours.sizes[a] == sizes[b] for a, b in renamed)


def test_a_loop_on_another_stream():
    _, executable = read("scan")
    loops = [t for t in executable.thunks if t.flow is Flow.LOOP]
    assert len(loops) == 2 and all(len(t.inner) == 2 for t in loops)
    begun = [t for t in executable.all_thunks if t.flow is Flow.START]
    ended = [t for t in executable.all_thunks if t.flow is Flow.DONE]
    assert begun and [t.execution for t in begun] == [t.execution for t in ended]
    assert {t.inner[0][0].kind for t in begun} == {"dynamic_slice_fusion"}
    assert not executable.unknown_kinds and executable.scheduling_mode == 2


def test_donated_arguments_and_outputs():
    _, executable = read("swapped")
    assert sorted(executable.parameters.values()) == [(0, ()), (1, ())]
    (first, second) = executable.outputs[(0,)], executable.outputs[(1,)]
    assert executable.parameters[first.allocation] == first.parameter == (0, ())
    assert executable.parameters[second.allocation] == second.parameter == (1, ())


def test_kinds():
    found = {t.kind for name in NAMES for t in read(name)[1].all_thunks}
    assert found >= {"custom_kernel", "device_to_device_copy", "fft", "while", "conditional"}
    assert found >= {"triangular_solve", "async_start", "async_done", "collective_permute"}


@pytest.mark.parametrize("name", ["chain", "scan"])
def test_places_are_those_of_the_dump(name):
    """Tensor by tensor, as XLA writes them to disk."""
    with tempfile.TemporaryDirectory() as folder:
        stage = compiled(name, dump=folder)
        (path,) = Path(folder).glob("*after_optimizations.hlo.pb")
        _, dumped = read_dump(path)
    executable: Any = stage.runtime_executable()
    module = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
    found = read_gpu_executable(executable.serialize(), unsnapped)
    ours = assignment_from_bytes(found.assignment, parse_module_proto(module))
    assert ours == dumped and ours.total_bytes == dumped.total_bytes
    written = {a.slice for t in found.all_thunks for a in t.accesses if a.writes}
    placed = {Slice(a.allocation, a.offset, a.size) for b in dumped.allocations for a in b.assigned}
    assert written and written <= placed


def test_a_kind_that_is_not_known(monkeypatch):
    kinds = {k: v for k, v in gpu_executable.KINDS.items() if v.name != "fft"}
    monkeypatch.setattr(gpu_executable, "KINDS", kinds)
    found = read_gpu_executable(serialized("fft"), unsnapped)
    assert found.unknown_kinds == {"field 27"}


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_what_is_broken_is_refused_or_read(data):
    whole = serialized("swapped")
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255))
    for broken in (whole[:at], whole[:at] + bytes((byte,)) + whole[at + 1 :]):
        try:
            read_gpu_executable(broken, unsnapped)
        except HloError as error:
            assert "\n" not in str(error)

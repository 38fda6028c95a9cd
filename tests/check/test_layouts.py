"""Layouts changed one at a time, where nothing writes the array anew."""

import re

import pytest

from hlo.module import parse_module_proto
from hlo.text import from_hlo_text
from olla_xla.check.executable import check_executable, check_planned, results_digest
from olla_xla.check.executable.layouts import check_layouts
from olla_xla.check.executable.program import read_program
from olla_xla.errors import CheckError

pytestmark = pytest.mark.quick

_MODULE = """HloModule m, is_scheduled=true

fused {
  f.p = f32[4,8]{1,0} parameter(0)
  f.t = f32[8,4]{1,0} transpose(f.p), dimensions={1,0}
  ROOT f.c = f32[4,8]{0,1} bitcast(f.t)
}

wrapped {
  w.p = f32[4,8]{1,0} parameter(0)
  ROOT w.r = f32[4,8]{1,0} add(w.p, w.p)
}, execution_thread="other"

body {
  b.p = (s32[], f32[4,8]{1,0}) parameter(0)
  b.n = s32[] get-tuple-element(b.p), index=0
  b.x = f32[4,8]{1,0} get-tuple-element(b.p), index=1
  b.y = f32[4,8]{1,0} add(b.x, b.x)
  ROOT b.r = (s32[], f32[4,8]{1,0}) tuple(b.n, b.y)
}

condition {
  c.p = (s32[], f32[4,8]{1,0}) parameter(0)
  c.n = s32[] get-tuple-element(c.p), index=0
  c.3 = s32[] constant(3)
  ROOT c.r = pred[] compare(c.n, c.3), direction=LT
}

yes {
  y.p = f32[4,8]{1,0} parameter(0)
  ROOT y.r = f32[4,8]{1,0} negate(y.p)
}

no {
  n.p = () parameter(0)
  n.z = f32[] constant(0)
  ROOT n.r = f32[4,8]{1,0} broadcast(n.z), dimensions={}
}

called {
  k.p = f32[4,8]{1,0} parameter(0)
  ROOT k.r = f32[4,8]{1,0} opt-barrier(k.p)
}

ENTRY e {
  x = f32[4,8]{1,0} parameter(0)
  n = s32[] parameter(1)
  which = pred[] parameter(2)
  i = s32[] parameter(3)
  fusion = f32[4,8]{0,1} fusion(x), kind=kLoop, calls=fused
  copy = f32[4,8]{1,0} copy(fusion)
  tuple = (s32[], f32[4,8]{1,0}) tuple(n, copy)
  loop = (s32[], f32[4,8]{1,0}) while(tuple), condition=condition, body=body
  element = f32[4,8]{1,0} get-tuple-element(loop), index=1
  start = ((f32[4,8]{1,0}), f32[4,8]{1,0}, u32[]) async-start(element), calls=wrapped, async_execution_thread="other"
  done = f32[4,8]{1,0} async-done(start)
  nothing = () tuple()
  either = f32[4,8]{1,0} conditional(which, done, nothing), true_computation=yes, false_computation=no
  call = f32[4,8]{1,0} call(either), to_apply=called
  part = f32[1,8]{1,0} slice(copy), slice={[0:1], [0:8]}
  update = f32[4,8]{1,0} dynamic-update-slice(call, part, i, n)
  all = f32[4,8]{1,0} all-reduce(update), to_apply=sum
  gather = f32[16,8]{1,0} all-gather(all), dimensions={0}
  scatter = f32[4,8]{1,0} reduce-scatter(gather), dimensions={0}, to_apply=sum
  copied = (f32[4,8]{1,0}, f32[4,8]{1,0}, u32[]) copy-start(scatter)
  ROOT r = f32[4,8]{1,0} copy-done(copied)
}
"""  # noqa: E501
_SUM = "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n"
_TEXT = _MODULE.replace("ENTRY", f"{_SUM}\nENTRY")
_LAYOUTS = list(re.finditer(r"f32\[(4|16),8\]\{([01]),([01])\}", _TEXT))


def _is_caught(text: str) -> bool:
    try:
        check_layouts(read_program(from_hlo_text(text)))
    except CheckError:
        return True
    return False


def test_what_is_read_in_another_layout_is_caught():
    assert len(_LAYOUTS) > 30
    for match in _LAYOUTS:
        other = f"f32[{match[1]},8]{{{match[3]},{match[2]}}}"
        assert _is_caught(_TEXT[: match.start()] + other + _TEXT[match.end() :]), match


def test_equal_layouts_and_copies_are_accepted():
    """Fusions, copies and bitcasts lay out their results as they like."""
    check_layouts(read_program(from_hlo_text(_TEXT)))


def test_a_rewritten_module_and_its_executable_are_held_to_it():
    """XLA compiles it, and the elements come out transposed."""
    square = """HloModule m, is_scheduled=true

f {
  p = f32[4,4]{1,0} parameter(0)
  ROOT n = f32[4,4]{1,0} negate(p)
}

ENTRY e {
  x = f32[4,4]{1,0} parameter(0)
  y = f32[4,4]{1,0} fusion(x), kind=kLoop, calls=f
  ROOT z = f32[4,4]{1,0} copy(y)
}
"""
    before = from_hlo_text(square)
    after = from_hlo_text(square.replace("y = f32[4,4]{1,0}", "y = f32[4,4]{0,1}"))
    check_planned(before, before, "cpu")
    check_executable(before, "cpu")
    with pytest.raises(CheckError, match="y reads or writes"):
        check_planned(before, after, "cpu")
    with pytest.raises(CheckError, match="y reads or writes"):
        check_executable(after, "cpu")


def test_what_fits_no_shape_is_caught():
    """XLA's text parser takes these as well."""
    for old, new in (
        ("get-tuple-element(loop), index=1", "get-tuple-element(loop), index=2"),
        ("fusion(x), kind", "fusion(x, x), kind"),
        ("tuple(n, copy)", "tuple(n, i)"),
        ("dynamic-update-slice(call, part", "dynamic-update-slice(part, part"),
    ):
        assert old in _TEXT
        assert _is_caught(_TEXT.replace(old, new)), new


_TWO = """HloModule m, is_scheduled=true

ENTRY e {
  x = f32[4,8] parameter(0)
  y = f32[8] parameter(1)
  ROOT z = f32[4,8] add(x, x)
}
"""


def test_an_output_lies_in_an_argument_of_its_size():
    def module(number: int) -> bytes:
        return from_hlo_text(f"""HloModule m, is_scheduled=true, input_output_alias={{ {{}}: ({number}, {{}}) }}

ENTRY e {{
  x = f32[4,8] parameter(0)
  y = f32[8] parameter(1)
  ROOT z = f32[4,8] add(x, x)
}}
""")  # noqa: E501

    check_executable(module(0), "cpu")
    with pytest.raises(CheckError, match="reuses argument 1, whose size differs"):
        check_executable(module(1), "cpu")


@pytest.mark.parametrize(
    ("field", "value"),
    [("parameter_number", 2), ("parameter_number", -1), ("parameter_shape_index", [0])],
)
@pytest.mark.parametrize("given", ["input_output_alias", "buffer_donor"])
def test_what_a_module_does_not_have_is_not_donated(given, field, value):
    """XLA's own process ends on such a module."""
    module = parse_module_proto(from_hlo_text(_TWO))
    entry = getattr(module, given).entries.add()
    if isinstance(value, list):
        getattr(entry, field)[:] = value
    else:
        setattr(entry, field, value)
    data = module.SerializeToString()
    with pytest.raises(CheckError, match="donates what it does not have"):
        check_planned(data, data, "cpu")


def test_results_depend_on_how_the_arguments_lie():
    """XLA takes an executable's layouts from its parameters; JAX passes arrays row-major."""
    text = """HloModule m, is_scheduled=true

ENTRY e {
  x = f32[4,4]{1,0} parameter(0)
  ROOT z = f32[4,4]{1,0} copy(x)
}
"""
    own, other = (
        results_digest(
            from_hlo_text(text.replace(f"{name} = f32[4,4]{{1,0}}", f"{name} = f32[4,4]{{0,1}}")),
            "cpu",
        )
        for name in ("-", "x")
    )
    assert own != other


def test_a_dimension_that_there_is_not_is_an_objection():
    module = from_hlo_text(
        _TEXT.replace("transpose(f.p), dimensions={1,0}", "transpose(f.p), dimensions={1,5}")
    )
    with pytest.raises(CheckError, match="attributes contradict"):
        results_digest(module, "cpu", loops=True)

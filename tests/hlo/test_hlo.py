"""The module view: protos, text and StableHLO; schedules written back; shapes to bytes."""

import jax
import jax.numpy as jnp
import pytest

from hlo import xla_pb2
from hlo.dumps.read import read_module, with_program_order
from hlo.module import HloError, module_from_bytes, parse_module_proto
from hlo.shapes import shape_from_proto
from hlo.text import from_hlo_text
from tests.support.rewrites import with_schedule

pytestmark = pytest.mark.quick

TEXT = """HloModule small, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

ENTRY main {
  a = f32[8,16]{1,0} parameter(0)
  b = f32[8,16]{1,0} parameter(1)
  s = f32[8,16]{1,0} add(a, b)
  c = f32[8,16]{1,0} cosine(b)
  m = f32[8,16]{1,0} multiply(s, c)
  ROOT r = (f32[8,16]{1,0}, f32[8,16]{1,0}) tuple(m, c)
}
"""


@pytest.fixture(scope="module")
def lowered():
    def step(x, w):
        return x @ w, jnp.tanh(x).sum()

    return jax.jit(step, donate_argnums=0).lower(jnp.ones((8, 8)), jnp.ones((8, 8)))


def names(computation):
    return [i.name for i in computation.schedule]


def test_text_keeps_schedule_and_donation():
    module = module_from_bytes(from_hlo_text(TEXT))
    assert names(module.entry) == ["a", "b", "s", "c", "m", "r"]
    assert module.aliases == {(0,): (0, ())}
    assert module.donated == {(0, ())}
    assert module.entry.root.shape.at((0,)).bytes == 8 * 16 * 4


def test_compiled_text_and_proto_agree(lowered, tmp_path):
    compiled = lowered.compile()
    text = tmp_path / "module.txt"
    text.write_text(compiled.as_text())
    proto = tmp_path / "module.pb"
    module = compiled.runtime_executable().hlo_modules()[0]
    proto.write_bytes(module.as_serialized_hlo_module_proto())
    one, two = (module_from_bytes(read_module(p)) for p in (text, proto))
    assert names(one.entry) == names(two.entry)
    assert one.aliases == two.aliases


def test_stablehlo_gets_its_program_order(lowered, tmp_path):
    path = tmp_path / "module.mlir"
    path.write_text(lowered.as_text())
    module = module_from_bytes(read_module(path))
    assert module.is_scheduled
    seen = set()
    for i in module.entry.schedule:
        assert all(o in seen for o in i.operands), i
        seen.add(i)
    assert [i.opcode for i in module.entry.schedule if i.opcode == "dot"] == ["dot"]
    assert module.donated == {(0, ())}


def test_source_locations_of_a_compiled_step(lowered):
    module = lowered.compile().runtime_executable().hlo_modules()[0]
    view = module_from_bytes(module.as_serialized_hlo_module_proto())
    assert any("test_hlo.py:" in i.location for i in view.entry.instructions)


def test_new_schedule_changes_nothing_else():
    data = from_hlo_text(TEXT)
    order = ("b", "c", "a", "s", "m", "r")
    changed = with_schedule(data, {"main": order}, {"c": {"olla_xla.step": "1"}})
    assert tuple(names(module_from_bytes(changed).entry)) == order
    before, after = (xla_pb2.HloModuleProto.FromString(d) for d in (data, changed))
    (c,) = [i for i in after.computations[-1].instructions if i.name == "c"]
    assert c.frontend_attributes.map["olla_xla.step"] == "1"
    for proto in (before, after):
        proto.ClearField("schedule")
    c.frontend_attributes.ClearField("map")
    assert before == after


@pytest.mark.parametrize(
    "order", [("b", "c", "a", "s", "m"), ("b", "c", "a", "s", "m", "m"), ("b", "c", "a", "s", "x")]
)
def test_an_order_that_is_no_permutation_is_refused(order):
    with pytest.raises(HloError, match="not a permutation"):
        with_schedule(from_hlo_text(TEXT), {"main": order})


def test_an_unknown_computation_is_refused():
    with pytest.raises(HloError, match="no scheduled computation other"):
        with_schedule(from_hlo_text(TEXT), {"other": ("a",)})


def test_fingerprint_ignores_the_schedule_but_not_the_program():
    data = from_hlo_text(TEXT)
    changed = with_schedule(data, {"main": ("b", "c", "a", "s", "m", "r")})
    other = from_hlo_text(TEXT.replace("cosine(b)", "cosine(a)"))
    undonated = from_hlo_text(TEXT.replace(", input_output_alias={ {0}: (0, {}, may-alias) }", ""))
    prints = [module_from_bytes(d).fingerprint for d in (data, changed, other, undonated)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello, world", "not HLO text, StableHLO or an HLO proto"),
        (b"\x00\x01\x02\xff\xfe", "not an HLO module proto"),
        (b"HloModule broken\n\nENTRY main {\n  a = ", "not HLO text that XLA can parse"),
        (b"module @x { func.func bogus", "not StableHLO that XLA can convert"),
    ],
)
def test_bad_files_are_one_line_errors(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(HloError, match=message) as error:
        read_module(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_truncated_proto_is_an_error():
    data = from_hlo_text(TEXT)
    with pytest.raises(HloError, match="truncated"):
        parse_module_proto(data[: len(data) // 2])


@pytest.mark.parametrize(
    "field, value",
    [
        ("output_shape_index", [2]),
        ("output_shape_index", [0, 0]),
        ("parameter_number", 2),
        ("parameter_number", -1),
        ("parameter_shape_index", [0]),
    ],
)
def test_donation_of_what_is_not_there_is_refused(field, value):
    """Found by tests/fuzz: such a dump must not end in a KeyError."""
    proto = parse_module_proto(from_hlo_text(TEXT))
    entry = proto.input_output_alias.entries[0]
    if isinstance(value, list):
        getattr(entry, field)[:] = value
    else:
        setattr(entry, field, value)
    with pytest.raises(HloError, match="donates arguments that it does not have"):
        module_from_bytes(proto.SerializeToString())


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(HloError, match="cannot read"):
        read_module(tmp_path / "none.pb")


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[3,5]", 60),
        ("bf16[7]", 14),
        ("pred[9]", 9),
        ("c128[2]", 32),
        ("s8[]", 1),
        ("f32[0,4]", 0),
        ("s64[4]", 32),
    ],
)
def test_bytes_of_shapes(shape, size):
    text = f"HloModule m\nENTRY e {{ ROOT p = {shape} parameter(0) }}"
    proto = xla_pb2.HloModuleProto.FromString(from_hlo_text(text))
    assert shape_from_proto(proto.computations[0].instructions[0].shape).bytes == size


def test_program_order_is_kept_where_a_schedule_exists():
    data = module_from_bytes(from_hlo_text(TEXT)).data
    assert with_program_order(data) == data

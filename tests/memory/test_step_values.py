"""What the values of a train step are to it, and where they come from: a step written by hand."""

import pytest

from hlo.module import module_from_bytes
from hlo.parse import from_hlo_text
from hlo.values import analyse
from olla_xla.memory.analysis.arguments import arguments, name_category
from olla_xla.memory.analysis.categories import categories
from olla_xla.memory.analysis.category import Category
from olla_xla.memory.analysis.live_tensor import Describer, operator_kind, padding_of
from olla_xla.memory.analysis.origins import Origins

pytestmark = pytest.mark.quick

FORWARD, BACKWARD = "jit(step)/jvp(Net)/layer", "jit(step)/transpose(jvp(Net))/layer"


def told(op_name, line=0):
    place = f' source_file="/home/me/train.py" source_line={line}' if line else ""
    return f'metadata={{op_name="{op_name}"{place}}}'


STEP = f"""HloModule jit_step, is_scheduled=true, input_output_alias={{ {{0}}: (0, {{}}, may-alias), {{1}}: (1, {{}}, may-alias) }}

halved {{
  p = f32[4,8] parameter(0)
  q = f32[4,8] multiply(p, p), {told(f"{BACKWARD}/mul", 13)}
  ROOT r = f32[4,8] copy(q)
}}

ENTRY main {{
  theta = f32[8,8] parameter(0), {told("theta")}
  speed = f32[8,8] parameter(1), {told("speed")}
  z = f32[4,8] parameter(2), {told("z")}
  rate = f32[] parameter(3), {told("rate")}
  h = f32[4,8] dot(z, theta), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {told(f"{FORWARD}/dot_general", 10)}
  t = f32[4,8] tanh(h), {told(f"{FORWARD}/tanh", 11)}
  g = f32[4,8] fusion(t), kind=kLoop, calls=halved
  again = f32[4,8] cosine(h), {told("jit(step)/transpose(jvp())/rematted_computation/cos", 14)}
  both = f32[4,8] add(g, again), {told(f"{BACKWARD}/add_any", 15)}
  copied = f32[4,8] copy(both)
  w = f32[8,8] dot(z, copied), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}, {told(f"{BACKWARD}/dot_general", 16)}
  moved = f32[8,8] add(speed, w), {told("jit(step)/add", 20)}
  next = f32[8,8] subtract(theta, moved), {told("jit(step)/sub", 21)}
  cut = f32[1,8] slice(z), slice={{[0:1], [0:8]}}, {told("jit(step)/slice", 22)}
  seen = f32[1,8] negate(cut), {told("jit(step)/neg", 23)}
  ROOT out = (f32[8,8], f32[8,8], f32[1,8]) tuple(next, moved, seen)
}}
"""  # noqa: E501


@pytest.fixture(scope="module")
def flow():
    return analyse(module_from_bytes(from_hlo_text(STEP)))


def by_name(flow):
    return {v.instruction.name: v for v in flow.values}


@pytest.mark.parametrize(
    ("path", "category"),
    [
        ("state['params']['w']", Category.PARAMETERS),
        ("state.opt_state[0].mu['params']", Category.OPTIMIZER),
        ("batch['image']", Category.BATCH),
        ("train_state.model.batch", Category.PARAMETERS),
        ("_tokens_", Category.BATCH),
        ("theta", None),
        ("parametersets", None),
    ],
)
def test_what_names_tell(path, category):
    assert name_category(path) is category


def test_arguments_are_told_by_their_readers(flow):
    found = {a.path: a for a in arguments(flow)}
    assert [a.number for a in arguments(flow)] == [0, 1, 2, 3]
    assert {path: a.category for path, a in found.items()} == {
        "theta": Category.PARAMETERS,
        "speed": Category.OPTIMIZER,
        "z": Category.BATCH,
        "rate": Category.ARGUMENTS,
    }
    assert {path for path, a in found.items() if a.donated} == {"theta", "speed"}


def test_without_a_backward_pass_names_alone_tell():
    text = """HloModule eval, is_scheduled=true

ENTRY main {
  p = (f32[2], f32[]) parameter(0), metadata={op_name="params"}
  q = f32[2] parameter(1)
  a = f32[2] get-tuple-element(p), index=0
  ROOT s = f32[2] add(a, q), metadata={op_name="jit(eval)/add"}
}
"""
    found = arguments(analyse(module_from_bytes(from_hlo_text(text))))
    assert [(a.number, a.index, a.path, a.category) for a in found] == [
        (0, (0,), "params[0]", Category.PARAMETERS),
        (0, (1,), "params[1]", Category.PARAMETERS),
        (1, (), "argument 1", Category.ARGUMENTS),
    ]


def test_every_value_has_its_category(flow):
    found = categories(flow, Origins(flow), arguments(flow), "cpu")
    named = {v.instruction.name: found[v.id] for v in flow.values if not v.shape.is_tuple}
    assert named == {
        "theta": Category.PARAMETERS,
        "speed": Category.OPTIMIZER,
        "z": Category.BATCH,
        "rate": Category.ARGUMENTS,
        "h": Category.ACTIVATIONS,  # read by what is computed again
        "t": Category.ACTIVATIONS,
        "g": Category.GRADIENTS,
        "again": Category.AGAIN,
        "both": Category.GRADIENTS,
        "copied": Category.GRADIENTS,
        "w": Category.GRADIENTS,
        "moved": Category.OPTIMIZER,
        "next": Category.PARAMETERS,
        "cut": Category.BATCH,
        "seen": Category.OUTPUTS,
    }


def test_lines(flow):
    origins, values = Origins(flow), by_name(flow)
    lines = {name: origins.of(values[name]) for name in ("h", "g", "copied", "theta")}
    assert lines["h"].line.endswith("train.py:10") and lines["h"].via == ""
    assert lines["g"].line.endswith("train.py:13"), "what the fusion makes its result of"
    assert lines["g"].op_name == f"{BACKWARD}/mul"
    assert lines["copied"].line.endswith("train.py:15") and lines["copied"].via == "made from both"
    assert lines["theta"].via.startswith("read by ") and lines["theta"].line
    assert lines["theta"].op_name != "theta", "which is its path"


def test_each_result_of_a_fusion_has_the_line_of_what_makes_it():
    text = f"""HloModule m, is_scheduled=true

pair {{
  p = f32[2] parameter(0)
  a = f32[2] sine(p), {told("jit(f)/sin", 30)}
  b = f32[2] cosine(p), {told("jit(f)/cos", 31)}
  ROOT t = (f32[2], f32[2]) tuple(a, b)
}}

ENTRY main {{
  p = f32[2] parameter(0)
  ROOT f = (f32[2], f32[2]) fusion(p), kind=kLoop, calls=pair
}}
"""
    flow = analyse(module_from_bytes(from_hlo_text(text)))
    lines = [Origins(flow).at(flow.module.entry.root, (k,)).line for k in range(2)]
    assert [line.rpartition(":")[2] for line in lines] == ["30", "31"]


def test_what_has_no_line_says_so():
    text = """HloModule m, is_scheduled=true

ENTRY main {
  p = f32[2] parameter(0)
  ROOT c = f32[2] copy(p)
}
"""
    flow = analyse(module_from_bytes(from_hlo_text(text)))
    origin = Origins(flow).at(flow.module.entry.root)
    assert origin.line == origin.via == "" and "has a line" in origin.why


def test_a_tensor(flow):
    describer, values = Describer(flow, "cpu"), by_name(flow)
    reader = values["both"].instruction
    found = describer.tensor(values["g"], (3, 7), reader)
    assert (found.name, found.bytes, found.shape) == ("g", 128, "f32[4,8]")
    assert (found.operator, found.module, found.argument) == ("loop fusion", "Net/layer", "")
    assert (found.start, found.stop, found.holder) == (3, 7, "both")
    assert found.holder_line.endswith("train.py:15") and found.is_found and not found.is_argument
    assert found.to_dict()["category"] == "gradients"


def test_tensors_of_arguments_and_of_what_replaces_them(flow):
    describer, values = Describer(flow, "cpu"), by_name(flow)
    given = describer.tensor(values["theta"], (0, 9), None)
    assert given.is_argument and given.argument == "theta" and given.op_name == given.module == ""
    after = describer.tensor(values["next"], (9, 12), None)
    assert after.argument == "theta" and not after.is_argument and after.holder == ""
    assert describer.argument(values["h"]) == ""
    assert describer.paths[1, ()] == "speed"


def test_operators_by_kind(flow):
    values = by_name(flow)
    assert operator_kind(values["g"].instruction) == "loop fusion"
    assert operator_kind(values["h"].instruction) == "dot"
    assert padding_of(values["h"]) == (0, "", 0), "nothing is padded on a CPU"

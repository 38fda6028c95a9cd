"""Modules as XLA prints them."""

import jax
import jax.numpy as jnp
import pytest

from hlo.module import parse_module_proto
from hlo.text import from_hlo_text, is_text_digest, module_text, text_digest, text_of

pytestmark = pytest.mark.quick

TEXT = """HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

ENTRY e {
  a = f32[4] parameter(0)
  k = f32[4] constant({1, 2, 3, 4})
  s = f32[4] add(a, k)
  c = f32[4] cosine(a)
  ROOT r = (f32[4], f32[4]) tuple(s, c)
}
"""


def changed(change):
    proto = parse_module_proto(from_hlo_text(TEXT))
    change(proto, {i.opcode: i for i in proto.computations[0].instructions})
    return module_text(proto.SerializeToString())


def swap(proto, _):
    ids = next(iter(proto.schedule.sequences.values())).instruction_ids
    ids[2], ids[3] = ids[3], ids[2]


@pytest.mark.parametrize(
    "change",
    [
        swap,
        lambda p, i: setattr(i["add"], "opcode", "subtract"),
        lambda p, i: i["add"].operand_ids.__setitem__(1, i["add"].operand_ids[0]),
        lambda p, i: setattr(i["constant"], "literal", i["constant"].literal[:-1] + b"\x41"),
        lambda p, i: i["cosine"].control_predecessor_ids.append(i["add"].id),
        lambda p, i: p.input_output_alias.entries.pop(),
        lambda p, i: setattr(i["add"], "backend_config", b"{}"),
    ],
)
def test_whatever_decides_what_runs_is_printed(change):
    before, after = changed(lambda *_: None), changed(change)
    assert before != after and text_digest(before) != text_digest(after)
    assert is_text_digest(text_digest(before))


def test_notes_make_no_difference():
    def note(proto, by_opcode):
        by_opcode["add"].frontend_attributes.map["a"] = 'it says "}, {" there'
        by_opcode["add"].metadata.op_name = "jit(f)/add"
        proto.frontend_attributes.map["b"] = "c"

    assert changed(lambda *_: None) == changed(note)


def test_an_executable_prints_what_it_was_made_of():
    step = jax.jit(lambda x, w: (jnp.tanh(x @ w).sum(), x), donate_argnums=0)
    compiled = step.lower(jnp.ones((8, 8)), jnp.ones((8, 8))).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    assert text_of(module) == module_text(module.as_serialized_hlo_module_proto())

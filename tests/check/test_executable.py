"""The referee of the final module, on small modules whose verdict is plain to see."""

import contextlib
import functools
import itertools
import re
import sys

import jax
import jax.numpy as jnp
import pytest

from hlo import xla_pb2
from hlo.text import from_hlo_text
from olla_xla.check.executable import (
    check_executable,
    check_places,
    check_planned,
)
from olla_xla.check.executable import results_digest as digest_for
from olla_xla.compile.accounting import final_module
from olla_xla.compile.assignment import assignment_proto
from olla_xla.errors import CheckError
from tests.support.compiles import STEPS, raw_step
from tests.support.plugins import CUDA

results_digest = functools.partial(digest_for, target="cpu")

HEAD = "HloModule m, is_scheduled=true{attributes}\n"

BODIES = """
double {
  p = f32[64] parameter(0)
  ROOT d = f32[64] add(p, p)
}

flipped {
  p = f32[64] parameter(0)
  r = f32[64] reverse(p), dimensions={0}
  ROOT d = f32[64] add(p, r)
}

other {
  p = f32[64] parameter(0)
  q = f32[64] parameter(1)
  r = f32[64] reverse(p), dimensions={0}
  s = f32[64] add(q, q)
  ROOT t = (f32[64], f32[64]) tuple(s, r)
}

update {
  p = f32[64] parameter(0)
  u = f32[4] parameter(1)
  i = s32[] parameter(2)
  ROOT d = f32[64] dynamic-update-slice(p, u, i)
}

sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}
"""

ALIASED = ", input_output_alias={ {0}: (0, {}, may-alias) }"
BOUND = "output_to_operand_aliasing={{}: (0, {})}"


def module(entry, attributes="", bodies=BODIES):
    return from_hlo_text(HEAD.format(attributes=attributes) + bodies + entry)


def verdict(data, target="cpu", **kwargs):
    """The objection, or "" if there is none; without the numbers that XLA adds to names."""
    try:
        check_executable(data, target, **kwargs)
    except CheckError as error:
        return re.sub(r"\.\d+", "", str(error))
    return ""


ROWS = """
rows {
  p = f32[4,16] parameter(0)
  i = s32[] parameter(1)
  s = f32[4,16] sine(p)
  zero = f32[] constant(0)
  sums = f32[16] reduce(s, zero), dimensions={0}, to_apply=sum
  columns = f32[16] LAST
  row = f32[1,16] bitcast(columns)
  z = s32[] constant(0)
  ROOT u = f32[4,16] dynamic-update-slice(p, row, i, z)
}

ENTRY e {
  a = f32[4,16] parameter(0)
  i = s32[] parameter(1)
  t = f32[4,16] tanh(a)
  ROOT f = f32[4,16] fusion(t, i), kind=kLoop, calls=rows
}"""
"""A row of an array is updated by sums over all of its rows."""


SAFE = {
    "a row by the sums of rows": ROWS.replace("LAST", "negate(sums)"),
    "bound to a dying operand": f"""
ENTRY e {{
  a = f32[64] parameter(0)
  t = f32[64] tanh(a)
  f = f32[64] fusion(t), kind=kLoop, calls=double, {BOUND}
  ROOT r = f32[64] sine(f)
}}""",
    "update in place": """
ENTRY e {
  a = f32[64] parameter(0)
  i = s32[] parameter(1)
  t = f32[64] tanh(a)
  u = f32[4] slice(t), slice={[0:4]}
  ROOT f = f32[64] fusion(t, u, i), kind=kLoop, calls=update
}""",
}

WRONG = {
    "a reader after the writer": (
        f"""
ENTRY e {{
  a = f32[64] parameter(0)
  t = f32[64] tanh(a)
  f = f32[64] fusion(t), kind=kLoop, calls=double, {BOUND}
  s = f32[64] sine(t)
  ROOT r = f32[64] add(f, s)
}}""",
        "s reads t, but f has written over it",
    ),
    "a reader through a bitcast": (
        f"""
ENTRY e {{
  a = f32[64] parameter(0)
  t = f32[64] tanh(a)
  b = f32[8,8] bitcast(t)
  f = f32[64] fusion(t), kind=kLoop, calls=double, {BOUND}
  s = f32[8,8] sine(b)
  ROOT r = (f32[64], f32[8,8]) tuple(f, s)
}}""",
        "s reads t, but f has written over it",
    ),
    "read elsewhere in the fusion": (
        f"""
ENTRY e {{
  a = f32[64] parameter(0)
  t = f32[64] tanh(a)
  ROOT f = f32[64] fusion(t), kind=kLoop, calls=flipped, {BOUND}
}}""",
        "f writes f over t before reading it",
    ),
    "a row by sums of other columns": (
        ROWS.replace("LAST", "reverse(sums), dimensions={0}"),
        "f writes f over t before reading it",
    ),
    "read elsewhere by another result": (
        """
ENTRY e {
  a = f32[64] parameter(0)
  b = f32[64] parameter(1)
  t = f32[64] tanh(a)
  u = f32[64] tanh(b)
  f = (f32[64], f32[64]) fusion(t, u), kind=kLoop, calls=other,
    output_to_operand_aliasing={{0}: (0, {})}
  ROOT g = f32[64] get-tuple-element(f), index=1
}""",
        "f writes f{0} over t before reading it",
    ),
    "an argument that was not donated": (
        f"""
ENTRY e {{
  a = f32[64] parameter(0)
  ROOT f = f32[64] fusion(a), kind=kLoop, calls=double, {BOUND}
}}""",
        "the caller reads a, an argument that was not donated, but f has written over it",
    ),
    "an update in place of what is read later": (
        """
ENTRY e {
  a = f32[64] parameter(0)
  i = s32[] parameter(1)
  t = f32[64] tanh(a)
  u = f32[4] slice(t), slice={[0:4]}
  f = f32[64] fusion(t, u, i), kind=kLoop, calls=update
  s = f32[64] sine(t)
  ROOT r = f32[64] add(f, s)
}""",
        "s reads t, but f has written over it",
    ),
    "a result that is overwritten": (
        f"""
ENTRY e {{
  a = f32[64] parameter(0)
  t = f32[64] tanh(a)
  f = f32[64] fusion(t), kind=kLoop, calls=double, {BOUND}
  ROOT r = (f32[64], f32[64]) tuple(f, t)
}}""",
        "the caller reads t, a result, but f has written over it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", SAFE)
def test_what_is_safe_passes(name, target):
    assert verdict(module(SAFE[name]), target) == ""


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name, target):
    text, objection = WRONG[name]
    assert objection in verdict(module(text), target)


def test_donated_arguments_must_be_taken_over():
    entry = """
ENTRY e {
  a = f32[64] parameter(0)
  b = f32[64] parameter(1)
  s = f32[64] sine(a)
  t = f32[64] sine(b)
  ROOT r = (f32[64], f32[64]) tuple(s, t)
}"""
    one, both = frozenset({(0, ())}), frozenset({(0, ()), (1, ())})
    assert verdict(module(entry, ALIASED), donated=one) == ""
    assert "memory of 1 of 1 donated arguments" in verdict(module(entry), donated=one)
    said = verdict(module(entry, ALIASED), donated=both)
    assert said.endswith("memory of 1 of 2 donated arguments, the first of them argument 1")


def test_donated_arguments_may_be_overwritten_once_read():
    entry = """
ENTRY e {{
  a = f32[64] parameter(0)
  {first}
  {second}
  ROOT r = (f32[64], f32[64]) tuple(d, s)
}}"""
    read, write = "s = f32[64] sine(a)", "d = f32[64] add(a, a)"
    assert verdict(module(entry.format(first=read, second=write), ALIASED)) == ""
    said = verdict(module(entry.format(first=write, second=read), ALIASED))
    assert "s reads a, but d has written over it" in said


LOOP = """
body {{
  s = (s32[], f32[64], f32[64]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[64] get-tuple-element(s), index=1
  y = f32[64] get-tuple-element(s), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  {first}
  {second}
  ROOT t = (s32[], f32[64], f32[64]) tuple(j, {result})
}}

test {{
  s = (s32[], f32[64], f32[64]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)
  ROOT p = pred[] compare(i, n), direction=LT
}}
"""

LOOP_ENTRY = """
ENTRY e {
  a = f32[64] parameter(0)
  b = f32[64] parameter(1)
  zero = s32[] constant(0)
  i = s32[] copy(zero)
  c = f32[64] copy(a)
  d = f32[64] copy(b)
  init = (s32[], f32[64], f32[64]) tuple(i, c, d)
  w = (s32[], f32[64], f32[64]) while(init), condition=test, body=body
  ROOT r = f32[64] get-tuple-element(w), index=1
}"""


def loop(first, second, result):
    return module(LOOP_ENTRY, bodies=LOOP.format(first=first, second=second, result=result))


def test_a_loop_overwrites_its_state():
    u, v = "u = f32[64] add(x, y)", "v = f32[64] multiply(x, y)"
    # u lies where x lay, so v, which reads x too, must not come after it.
    assert "v reads x" in verdict(loop(u, v, "u, v")).replace("s{1}", "x")
    only = loop("u = f32[64] add(x, y)", "v = f32[64] sine(y)", "u, v")
    assert verdict(only) == ""


def test_exchanged_loop_state_is_another_result():
    u, v = "u = f32[64] sine(x)", "v = f32[64] cosine(y)"
    right, wrong = loop(u, v, "u, v"), loop(u, v, "v, u")
    assert results_digest(right) != results_digest(wrong)
    assert verdict(right, results=results_digest(right)) == ""
    assert verdict(wrong)  # nor do they lie where the next iteration looks for them


def test_a_loop_hands_on_what_it_does_not_change():
    """y is used after the loop as well: the loop leaves it alone."""
    entry = LOOP_ENTRY.replace(
        "ROOT r = f32[64] get-tuple-element(w), index=1",
        "x = f32[64] get-tuple-element(w), index=1\n  ROOT r = f32[64] add(x, d)",
    )
    text = LOOP.format(first="u = f32[64] add(x, y)", second="", result="u, y")
    assert verdict(module(entry, bodies=text)) == ""
    text = LOOP.format(first="u = f32[64] add(x, x)", second="v = f32[64] sine(y)", result="u, v")
    assert "r reads d, but w has written over it" in verdict(module(entry, bodies=text))


def test_both_branches_count():
    text = """
on {
  p = (f32[64], f32[64]) parameter(0)
  x = f32[64] get-tuple-element(p), index=0
  y = f32[64] get-tuple-element(p), index=1
  ROOT r = f32[64] add(x, y)
}

off {
  p = (f32[64], f32[64]) parameter(0)
  x = f32[64] get-tuple-element(p), index=0
  f = f32[64] fusion(x), kind=kLoop, calls=double, output_to_operand_aliasing={{}: (0, {})}
  ROOT r = f32[64] sine(f)
}
"""
    entry = """
ENTRY e {{
  a = f32[64] parameter(0)
  k = pred[] parameter(1)
  t = f32[64] tanh(a)
  u = f32[64] cosine(a)
  given = (f32[64], f32[64]) tuple(t, u)
  c = f32[64] conditional(k, given, given), true_computation=on, false_computation=off
  ROOT r = f32[64] add(c, {read})
}}"""
    assert verdict(module(entry.format(read="u"), bodies=BODIES + text)) == ""
    said = verdict(module(entry.format(read="t"), bodies=BODIES + text))
    assert "r reads t, but c has written over it" in said


def test_an_order_must_keep_dependences():
    data = module(SAFE["bound to a dying operand"])
    proto = xla_pb2.HloModuleProto.FromString(data)
    sequence = proto.schedule.sequences[proto.entry_computation_id].instruction_ids
    sequence[1], sequence[2] = sequence[2], sequence[1]
    assert "f runs before t, whose result it needs" in verdict(proto.SerializeToString())
    sequence[1], sequence[2] = sequence[2], sequence[1]
    del sequence[3]
    assert "is not in the schedule" in verdict(proto.SerializeToString())


def test_what_leaves_the_results_alone_leaves_the_digest():
    plain = """
ENTRY e {
  a = f32[64] parameter(0)
  s = f32[64] sine(a)
  c = f32[64] cosine(a)
  f = f32[64] fusion(s), kind=kLoop, calls=double
  g = f32[64] multiply(f, s)
  ROOT r = (f32[64], f32[64]) tuple(g, c)
}"""
    rewritten = """
ENTRY e {
  a = f32[64] parameter(0)
  other_name = f32[64] cosine(a)
  s = f32[64] sine(a)
  k = f32[64] copy(s)
  b = f32[8,8] bitcast(k)
  bb = f32[64] bitcast(b)
  f = f32[64] fusion(bb), kind=kLoop, calls=double, output_to_operand_aliasing={{}: (0, {})}
  again = f32[64] sine(a)
  g = f32[64] multiply(f, again)
  ROOT r = (f32[64], f32[64]) tuple(g, other_name)
}"""
    assert results_digest(module(plain)) == results_digest(module(rewritten))
    for old, new in (
        ("multiply(f, s)", "multiply(s, f)"),
        ("cosine(a)", "sine(a)"),
        ("fusion(s)", "fusion(c)"),
        ("tuple(g, c)", "tuple(c, g)"),
        ("kind=kLoop", "kind=kInput"),
        ("calls=double", "calls=flipped"),
    ):
        changed = plain.replace(old, new)
        assert results_digest(module(changed)) != results_digest(module(plain)), new


@pytest.mark.parametrize("loops", [False, True])
def test_a_cpu_has_another_code_generator_for_what_is_elementwise_only(loops):
    """The same expression, rounded by the one or by the other."""
    text = """
f {
  p = f32[64] parameter(0)
  m = f32[64] multiply(p, p)
  ROOT s = f32[64] add(m, p)
}
g {
  p = f32[64] parameter(0)
  c = f32[1,64] bitcast(p)
  q = f32[64] bitcast(c)
  m = f32[64] multiply(q, q)
  ROOT s = f32[64] add(m, q)
}
ENTRY e {
  a = f32[64] parameter(0)
  ROOT r = f32[64] fusion(a), kind=kLoop, calls=f
}"""
    first, second = module(text), module(text.replace("calls=f", "calls=g"))
    for target, same in (("cuda", True), ("cpu", False)):
        digests = (digest_for(data, target, loops=loops) for data in (first, second))
        assert (next(digests) == next(digests)) is same


def test_side_effects_keep_their_order():
    text = """
ENTRY e {{
  a = f32[64] parameter(0)
  {0}
  {1}
  ROOT r = (f32[64], f32[64]) tuple(x, y)
}}"""
    calls = [
        f'{n} = f32[64] custom-call(a), custom_call_target="{n}", custom_call_has_side_effect=true'
        for n in "xy"
    ]
    first, second = module(text.format(*calls)), module(text.format(*reversed(calls)))
    assert results_digest(first) != results_digest(second)
    pure = [c.replace(", custom_call_has_side_effect=true", "") for c in calls]
    first, second = module(text.format(*pure)), module(text.format(*reversed(pure)))
    assert results_digest(first) == results_digest(second)


def assignment_of(data, places):
    """A BufferAssignmentProto with one allocation; name -> (offset, size)."""
    module = xla_pb2.HloModuleProto.FromString(data)
    names = {i.name.split(".")[0]: i.name for i in module.computations[-1].instructions}
    proto = xla_pb2.BufferAssignmentProto()
    allocation = proto.buffer_allocations.add(index=0, size=1 << 20)
    for number, (name, (offset, size)) in enumerate(places.items()):
        buffer = proto.logical_buffers.add(id=number, size=size)
        buffer.defined_at.instruction_name = names[name]
        allocation.assigned.add(logical_buffer_id=number, offset=offset, size=size)
    return proto.SerializeToString()


@pytest.mark.parametrize(
    ("places", "objection"),
    [
        ({"a": 0, "s": 256, "c": 512, "r": 256}, ""),  # an elementwise result over an operand
        ({"a": 0, "s": 256, "c": 384, "r": 1024}, "r reads s, but c has written over it"),
        ({"a": 0, "s": 0, "c": 512, "r": 256}, "c reads a, but s has written over it"),
        ({"a": 0, "s": 256, "c": 512, "r": 320}, "r writes r over s before reading it"),
        ({"a": 0, "s": 256, "r": 512}, "no memory to c"),
    ],
)
def test_bytes_are_followed(places, objection):
    data = module("""
ENTRY e {
  a = f32[64] parameter(0)
  s = f32[64] sine(a)
  c = f32[64] cosine(a)
  ROOT r = f32[64] add(s, c)
}""")
    assignment = assignment_of(data, {n: (k, 256) for n, k in places.items()})
    said = verdict(data, assignment=assignment)
    assert said == objection if not objection else objection in said
    accepted = check_planned(data, data, "cpu")
    with pytest.raises(CheckError) if objection else contextlib.nullcontext() as raised:
        check_places(accepted, data, "cpu", assignment=assignment)
    assert raised is None or said in re.sub(r"\.\d+", "", str(raised.value))


def test_places_are_found_by_the_executables_own_ids():
    data = module(SAFE["bound to a dying operand"])
    accepted = check_planned(data, data, "cpu")
    proto = xla_pb2.HloModuleProto.FromString(data)
    ids = {i.name: i.id for c in proto.computations for i in c.instructions}
    for i in (i for c in proto.computations for i in c.instructions):
        i.id += 1000
    found = xla_pb2.BufferAssignmentProto()
    allocation = found.buffer_allocations.add(index=0, size=1 << 20)
    for number, place in enumerate(ids.values()):
        buffer = found.logical_buffers.add(id=number, size=256)
        buffer.defined_at.instruction_id = place + 1000
        allocation.assigned.add(logical_buffer_id=number, offset=512 * number, size=256)
    final, assignment = proto.SerializeToString(), found.SerializeToString()
    with pytest.raises(CheckError, match="no memory"):
        check_places(accepted, data, "cpu", assignment=assignment)
    check_places(accepted, final, "cpu", assignment=assignment)


def test_a_call_that_is_one_function_writes_its_tuples_tables():
    """A table of addresses that lies where the loop's counter does is written over it."""
    x = jax.ShapeDtypeStruct((64,), jnp.float32)
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, a: jnp.sin(a) * 1.5 + a[::-1], x))
    compiled = loop.lower(x).compile()
    data, assignment = final_module(compiled), assignment_proto(compiled, "cpu")
    assert verdict(data, assignment=assignment) == ""
    found = xla_pb2.BufferAssignmentProto.FromString(assignment)
    tables = {b.id for b in found.logical_buffers if b.size == 16}
    (temp,) = (
        a for a in found.buffer_allocations if tables & {s.logical_buffer_id for s in a.assigned}
    )
    counter = max(s.offset for s in temp.assigned if s.size == 4)
    for s in temp.assigned:
        s.offset = counter if s.logical_buffer_id in tables else s.offset
    assert "tuple has written over it" in verdict(data, assignment=found.SerializeToString())


@pytest.mark.parametrize("target", ["cpu", CUDA])
@pytest.mark.parametrize("name", sorted(STEPS))
def test_what_xla_compiles_passes(name, target):
    data, assignment = raw_step(name, target)
    assert verdict(data, target, assignment=assignment, results=digest_for(data, target)) == ""


def chain(length):
    lines = ["a = f32[64] parameter(0)", "t0 = f32[64] tanh(a)"]
    for k in range(length):
        lines.append(
            f"t{k + 1} = f32[64] fusion(t{k}), kind=kLoop, calls=double, {BOUND}"
            if k % 2
            else f"t{k + 1} = f32[64] sine(t{k})"
        )
    lines.append(f"ROOT r = f32[64] cosine(t{length})")
    return module("ENTRY e {\n" + "\n".join(lines) + "\n}")


def lines(data):
    """Lines of Python that a verdict executes."""
    monitoring, tool = sys.monitoring, sys.monitoring.PROFILER_ID
    met = itertools.count()
    monitoring.use_tool_id(tool, "lines")
    monitoring.register_callback(tool, monitoring.events.LINE, lambda *_: next(met) and None)
    monitoring.set_events(tool, monitoring.events.LINE)
    try:
        assert verdict(data, results=results_digest(data)) == ""
    finally:
        monitoring.free_tool_id(tool)
    return next(met)


def test_work_is_in_proportion_to_the_module():
    assert lines(chain(1_000)) < 4.4 * lines(chain(250))

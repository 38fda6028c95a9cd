"""Seeded faults: each kind by hand with the verdict that is known, and a small run of them all."""

import random
import re
from contextlib import nullcontext

import pytest

from benchmarks.commands import mutants as report
from benchmarks.mutants import driver
from benchmarks.mutants.audited import AuditedSubject
from benchmarks.mutants.draft import Draft
from benchmarks.mutants.kinds import KINDS, OVERLAP, THUNKS, mutated
from benchmarks.mutants.overlap import overlapped
from benchmarks.mutants.text import read_back
from hlo import xla_pb2
from hlo.text import from_hlo_text
from olla_xla.check.executable import check_executable, check_rewrite, results_digest
from olla_xla.check.executable.verdict import is_reordered
from olla_xla.errors import CheckError
from tests.support.compiles import xla_schedule

SEEDS = 64


def verdict(before: bytes, after: bytes, target: str = "cpu") -> str:
    """What the referee objects to in a module that is also taken for the final one."""
    try:
        if is_reordered(before, after):  # then it need not number what a module computes
            assert results_digest(before, target) == results_digest(after, target)
        check_rewrite(before, after, target)
        check_executable(after, target, results=results_digest(before, target))
    except CheckError as error:
        return str(error)
    return ""


def all_mutants(text: str, kind: str, target: str = "cpu") -> dict[str, str]:
    """What each of several seeds does to a module -> the referee's objection or ""."""
    module = from_hlo_text(text)
    assert not verdict(module, module, target)
    made = [mutated(module, kind, str(seed)) for seed in range(SEEDS)]
    return {what: verdict(module, data, target) for what, data in filter(None, made)}


def verdicts(text: str, kind: str, target: str = "cpu") -> dict[str, bool]:
    """What each of several seeds does to a module -> whether it is caught."""
    return {what: bool(v) for what, v in all_mutants(text, kind, target).items()}


READ_LATER = """
HloModule m, is_scheduled=true

f {
  p = f32[8]{0} parameter(0)
  ROOT n = f32[8]{0} negate(p)
}

g {
  p = f32[8]{0} parameter(0)
  ROOT n = f32[8]{0} sine(p)
}

h {
  a = f32[8]{0} parameter(0)
  b = f32[8]{0} parameter(1)
  ROOT s = f32[8]{0} add(a, b)
}

ENTRY e {
  x = f32[8]{0} parameter(0)
  first = f32[8]{0} fusion(x), kind=kLoop, calls=g
  second = f32[8]{0} fusion(first), kind=kLoop, calls=f
  third = f32[8]{0} fusion(first, second), kind=kLoop, calls=h
  ROOT r = (f32[8]{0}) tuple(third)
}
"""


def test_an_operand_that_is_read_later_must_not_be_bound():
    assert verdicts(READ_LATER, "alias_read_later") == {
        "result [] of first bound to its operand 0": True,  # the caller's
        "result [] of second bound to its operand 0": True,  # third reads it
    }
    assert verdicts(READ_LATER, "alias_read_inside") == {
        "result [] of third bound to its operand 0": False,  # safe
        "result [] of third bound to its operand 1": False,
    }


def inside(line: str, more: str = "") -> str:
    return f"""
HloModule m, is_scheduled=true
{more}
f {{
  p = f32[4,4]{{1,0}} parameter(0)
  {line}
}}

g {{
  p = f32[4,4]{{1,0}} parameter(0)
  ROOT n = f32[4,4]{{1,0}} sine(p)
}}

ENTRY e {{
  x = f32[4,4]{{1,0}} parameter(0)
  given = f32[4,4]{{1,0}} fusion(x), kind=kLoop, calls=g
  made = f32[4,4]{{1,0}} fusion(given), kind=kLoop, calls=f
  ROOT r = (f32[4,4]{{1,0}}) tuple(made)
}}
"""


MAX = """
max {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT m = f32[] maximum(a, b)
}
"""


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("ROOT n = f32[4,4]{1,0} negate(p)", False),
        ("ROOT n = f32[4,4]{1,0} multiply(p, p)", False),
        ("ROOT t = f32[4,4]{1,0} transpose(p), dimensions={1,0}", True),
        ("ROOT t = f32[4,4]{1,0} reverse(p), dimensions={1}", True),
        (
            "t = f32[4,4]{1,0} reverse(p), dimensions={0}\nROOT a = f32[4,4]{1,0} add(p, t)",
            True,
        ),
        (
            "s = f32[1,4]{1,0} slice(p), slice={[0:1], [0:4]}\n"
            "b = f32[4]{0} bitcast(s)\n"
            "w = f32[4,4]{1,0} broadcast(b), dimensions={1}\n"
            "ROOT a = f32[4,4]{1,0} add(p, w)",
            True,
        ),
        (
            "z = f32[] constant(0)\n"
            "m = f32[4]{0} reduce(p, z), dimensions={1}, to_apply=max\n"
            "w = f32[4,4]{1,0} broadcast(m), dimensions={0}\n"
            "ROOT a = f32[4,4]{1,0} subtract(p, w)",
            True,
        ),
        ("ROOT d = f32[4,4]{1,0} copy(p)", False),
        ("t = f32[16]{0} bitcast(p)\nROOT b = f32[4,4]{1,0} bitcast(t)", False),
        ("t = f32[4,4]{0,1} bitcast(p)\nROOT n = f32[4,4]{1,0} negate(t)", True),
        (
            "t = f32[3,4]{1,0} slice(p), slice={[1:4], [0:4]}\n"
            "s = f32[1,4]{1,0} slice(p), slice={[0:1], [0:4]}\n"
            "ROOT c = f32[4,4]{1,0} concatenate(t, s), dimensions={0}",
            True,
        ),
    ],
)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_fusion_must_read_each_place_before_it_writes_it(line, caught, target):
    found = verdicts(inside(line, MAX), "alias_read_inside", target)
    assert found == {"result [] of made bound to its operand 0": caught}


DONATED = """
HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

ENTRY e {
  x = f32[8]{0} parameter(0)
  y = f32[8]{0} parameter(1)
  read = f32[8]{0} sine(x)
  new = f32[8]{0} add(x, y)
  last = f32[8]{0} multiply(y, y)
  ROOT r = (f32[8]{0}, f32[8]{0}, f32[8]{0}) tuple(new, read, last)
}
"""


def test_a_donated_argument_must_not_be_read_behind_its_output():
    assert verdicts(DONATED, "behind_writer") == {
        "read runs after new (the output in its place)": True
    }


def test_other_orders_are_accepted():
    found = all_mutants(DONATED, "shuffled")
    assert all("random order" in what for what in found)
    assert {bool(v) for v in found.values()} == {True, False}
    assert {re.sub(" but.*", "", v) for v in found.values() if v} == {"read reads x,"}


def test_an_update_must_not_come_before_what_reads_the_old_array():
    text = """
HloModule m, is_scheduled=true

ENTRY e {
  x = f32[8]{0} parameter(0)
  u = f32[2]{0} parameter(1)
  k = s32[] parameter(2)
  old = f32[8]{0} sine(x)
  read = f32[8]{0} negate(old)
  new = f32[8]{0} dynamic-update-slice(old, u, k)
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(new, read)
}
"""
    assert verdicts(text, "behind_writer") == {"read runs after new (in place)": True}


BOUND = """
HloModule m, is_scheduled=true

f {
  p = f32[8]{0} parameter(0)
  ROOT n = f32[8]{0} negate(p)
}

ENTRY e {
  x = f32[8]{0} parameter(0)
  old = f32[8]{0} sine(x)
  read = f32[8]{0} cosine(old)
  new = f32[8]{0} fusion(old), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=f
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(new, read)
}
"""


def test_a_bound_result_must_not_come_before_another_reader():
    assert verdicts(BOUND, "behind_writer") == {"read runs after new (bound to it)": True}


LOOP = """
HloModule m, is_scheduled=true

body {
  s = (s32[], f32[8]{0}, f32[8]{0}) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  a = f32[8]{0} get-tuple-element(s), index=1
  b = f32[8]{0} get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(k, one)
  c = f32[8]{0} add(a, b)
  d = f32[8]{0} sine(b)
  ROOT r = (s32[], f32[8]{0}, f32[8]{0}) tuple(next, c, d)
}

condition {
  s = (s32[], f32[8]{0}, f32[8]{0}) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT t = pred[] compare(k, n), direction=LT
}

ENTRY e {
  x = f32[8]{0} parameter(0)
  z = s32[] parameter(1)
  i = s32[] negate(z)
  p = f32[8]{0} cosine(x)
  q = f32[8]{0} sine(x)
  t = (s32[], f32[8]{0}, f32[8]{0}) tuple(i, p, q)
  w = (s32[], f32[8]{0}, f32[8]{0}) while(t), condition=condition, body=body
  u = f32[8]{0} get-tuple-element(w), index=1
  v = f32[8]{0} get-tuple-element(w), index=2
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(u, v)
}
"""


def test_elements_of_a_loop_must_not_be_exchanged():
    assert verdicts(LOOP, "loop_state") == {
        "elements 1 and 2 of t.1 exchanged": True,
        "elements 1 and 2 of r exchanged": True,
        "a takes element 2 of the state for element 1": True,
        "b takes element 1 of the state for element 2": True,
    }


def test_a_loop_state_must_not_be_read_behind_the_next():
    assert verdicts(LOOP, "behind_writer") == {
        "c runs after d (the loop's next state)": True,
    }


def test_results_must_not_be_exchanged():
    assert verdicts(LOOP, "results") == {"elements 0 and 1 of r.1 exchanged": True}


def test_an_exchange_that_changes_nothing_passes():
    twice = DONATED.replace("last = f32[8]{0} multiply(y, y)", "last = f32[8]{0} sine(x)")
    twice = twice.replace("new = f32[8]{0} add(x, y)\n  ", "").replace(
        "ROOT r", "new = f32[8]{0} add(x, y)\n  ROOT r"
    )
    found = verdicts(twice, "results")
    assert found["elements 1 and 2 of r exchanged"] is False
    assert found["elements 0 and 1 of r exchanged"] is True


@pytest.mark.parametrize("kind", ["operand", "exchanged", "constant", "attribute"])
def test_another_operator_or_operand_is_another_result(kind):
    text = DONATED.replace("add(x, y)", "subtract(x, y)").replace(
        "multiply(y, y)", "multiply(y, c)\n"
    )
    text = text.replace("  read =", "  c = f32[8]{0} constant({1,2,3,4,5,6,7,8})\n  read =")
    found = verdicts(text, kind)
    commutes = {"operands 0 and 1 of last exchanged"}  # multiply; not worth knowing
    assert found and all(caught for what, caught in found.items() if what not in commutes)


def test_a_clone_must_read_what_its_original_reads():
    text = """
HloModule m, is_scheduled=true

ENTRY e {
  x = f32[8]{0} parameter(0)
  y = f32[8]{0} parameter(1)
  a = f32[8]{0} sine(x)
  b = f32[8]{0} negate(a)
  a.remat = f32[8]{0} sine(x)
  c = f32[8]{0} add(a.remat, b)
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(c, y)
}
"""
    assert verdicts(text, "clone_operand") == {
        f"a.remat reads {other} as its operand 0": True for other in ("y", "a", "b")
    }
    proper = from_hlo_text(text)
    without = from_hlo_text(re.sub(r"  a.remat =.*\n", "", text).replace("a.remat", "a"))
    assert results_digest(proper, "cpu") == results_digest(without, "cpu")


def test_a_slice_must_stay_in_its_place():
    text = """
HloModule m, is_scheduled=true

ENTRY e {
  x = f32[8]{0} parameter(0)
  u = f32[2]{0} parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  part = f32[2]{0} dynamic-slice(x, i), dynamic_slice_sizes={2}
  old = f32[8]{0} sine(x)
  new = f32[8]{0} dynamic-update-slice(old, part, j)
  ROOT r = (f32[8]{0}) tuple(new)
}
"""
    assert verdicts(text, "index") == {
        "part reads j as its operand 1": True,
        "new reads i as its operand 2": True,
    }


def test_a_loop_must_keep_its_number_of_iterations():
    """XLA counts iterations by the configuration, and never asks the condition."""
    text = LOOP.replace("body=body", 'body=body, backend_config={"known_trip_count":{"n":"3"}}')
    found = verdicts(text, "configuration")
    assert len(found) == 4 and all(found.values())


def test_fusions_must_keep_kind_and_computation():
    found = verdicts(READ_LATER, "fusion")
    assert "computations of first and second exchanged" in found and all(found.values())


def test_a_fused_operand_is_another_result():
    text = READ_LATER.replace(
        "ROOT s = f32[8]{0} add(a, b)",
        "q = f32[8]{0} multiply(a, a)\n  w = f32[8]{0} multiply(b, q)\n"
        "  ROOT s = f32[8]{0} subtract(w, q)",
    )
    found = verdicts(text, "fused_operand")
    assert found and all(found.values())


def test_an_order_must_keep_operands_first():
    found = verdicts(DONATED, "before_operand")
    assert found and all(found.values())


EDGES = """
HloModule m, is_scheduled=true

ENTRY e {
  x = f32[8]{0} parameter(0)
  a = f32[8]{0} sine(x)
  b = f32[8]{0} cosine(x), control-predecessors={a}
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(a, b)
}
"""


def test_a_control_edge_must_be_kept():
    assert verdicts(EDGES, "lost_edge") == {"b no longer waits for a, and runs first": True}


def test_effects_must_keep_their_order():
    text = """
HloModule m, is_scheduled=true

ENTRY e {
  x = f32[8]{0} parameter(0)
  a = f32[8]{0} custom-call(x), custom_call_target="tell", custom_call_has_side_effect=true
  b = f32[8]{0} custom-call(x), custom_call_target="ask", custom_call_has_side_effect=true
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(a, b)
}
"""
    assert verdicts(text, "effects") == {"a runs after b; both have effects": True}


def test_a_copy_is_dropped_only_where_nothing_is_overwritten():
    text = """
HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

ENTRY e {
  x = f32[8]{0} parameter(0)
  y = f32[8]{0} parameter(1)
  kept = f32[8]{0} copy(x)
  spare = f32[8]{0} copy(y)
  new = f32[8]{0} add(x, spare)
  late = f32[8]{0} sine(kept)
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(new, late)
}
"""
    found = verdicts(text, "lost_copy")
    assert len(found) == 4
    assert {lost.split(" not ")[0] for lost, caught in found.items() if not caught} == {"spare"}


def test_outputs_must_not_change_arguments():
    text = """
HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }

ENTRY e {
  x = f32[8]{0} parameter(0)
  y = f32[8]{0} parameter(1)
  a = f32[8]{0} sine(x)
  b = f32[8]{0} cosine(y)
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(a, b)
}
"""  # noqa: E501
    assert verdicts(text, "donation") == {"donated arguments 1 and 0 exchanged": True}


def test_an_asynchronous_copy_is_read_until_it_is_done():
    text = """
HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

ENTRY e {
  x = f32[8]{0} parameter(0)
  y = f32[8]{0} parameter(1)
  begun = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(x)
  kept = f32[8]{0} copy-done(begun)
  new = f32[8]{0} add(x, y)
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(new, kept)
}
"""
    found = verdicts(text, "behind_writer", "cuda")
    assert found and all(found.values())


def test_a_reduction_on_a_gpu_may_be_overwritten():
    """What a fusion of kind kInput reduces is read before its other results are written."""
    text = (
        MAX.join(("HloModule m, is_scheduled=true\n", ""))
        + """
f {
  p = f32[4,4]{1,0} parameter(0)
  z = f32[] constant(0)
  m = f32[4]{0} reduce(p, z), dimensions={1}, to_apply=max
  n = f32[4,4]{1,0} negate(p)
  ROOT r = (f32[4]{0}, f32[4,4]{1,0}) tuple(m, n)
}

ENTRY e {
  x = f32[4,4]{1,0} parameter(0)
  given = f32[4,4]{1,0} sine(x)
  made = (f32[4]{0}, f32[4,4]{1,0}) fusion(given), kind=kInput, calls=f
  a = f32[4]{0} get-tuple-element(made), index=0
  b = f32[4,4]{1,0} get-tuple-element(made), index=1
  ROOT r = (f32[4]{0}, f32[4,4]{1,0}) tuple(a, b)
}
"""
    )
    what = "result [1] of made bound to its operand 0"
    assert verdicts(text, "alias_read_inside", "cpu") == {what: True}
    assert verdicts(text, "alias_read_inside", "cuda") == {what: False}


def test_bound_and_late_is_what_the_planner_once_did():
    """A result bound to a dying operand, and another reader of that put behind the fusion."""
    text = BOUND.replace(" output_to_operand_aliasing={{}: (0, {})},", "")
    assert verdicts(text, "bound_and_late") == {
        "result [] of new bound to its operand 0, and read runs after new": True
    }


@pytest.mark.cuda13
def test_faults_of_a_module_for_the_h100():
    """Not run: what is read behind its writer is certainly wrong."""
    import jax

    from tests.support.compiles import STEPS, on_h100

    step, arguments, donated = STEPS["two_layers"]
    lowered = jax.jit(step, donate_argnums=donated).lower(*on_h100(arguments))
    module = xla_schedule(lowered)
    assert not verdict(module, module, "cuda")
    found = [
        mutated(module, kind, str(seed))
        for kind in ("behind_writer", "bound_and_late", "results", "lost_edge")
        for seed in range(4)
    ]
    made = [mutant for mutant in found if mutant is not None]
    assert made and all(verdict(module, data, "cuda") for _, data in made)


def test_a_draft_that_is_not_changed_is_the_module():
    module = from_hlo_text(LOOP)
    assert results_digest(Draft(module).finish(), "cpu") == results_digest(module, "cpu")


def test_equal_seeds_give_equal_mutants():
    module = from_hlo_text(LOOP)
    made = {kind: mutated(module, kind, "7") for kind in KINDS if kind != OVERLAP}
    assert sum(mutant is not None for mutant in made.values()) >= 8
    assert made == {kind: mutated(module, kind, "7") for kind in made}
    others = {kind: mutated(module, kind, "8") for kind in made}
    assert others != made


def test_overlapping_buffers_are_caught():
    """Moved for real in the executable, and in the assignment that the referee is given."""
    import jax
    import jax.numpy as jnp

    from olla_xla.compile.accounting import final_module
    from olla_xla.compile.jax_private import loaded_again

    def step(x):
        a, b = jnp.sin(x) @ x, jnp.cos(x) @ x
        c = a @ b
        return ((a + b) @ c) @ (c @ a - b)

    x = jnp.asarray(random.Random(0).choices(range(9), k=1024), jnp.float32).reshape(32, 32)
    compiled = jax.jit(step).lower(x).compile()
    expected = compiled(x)
    _, data = overlapped(compiled.runtime_executable().serialize(), "1")
    moved = loaded_again(compiled, data)
    assert not all((a == b).all() for a, b in zip(jax.tree.leaves(expected), moved(x), strict=True))
    for stage, caught in ((compiled, False), (moved, True)):
        assignment = stage.memory_analysis().serialized_buffer_assignment_proto
        try:
            check_executable(final_module(stage), "cpu", assignment=assignment)
            assert not caught
        except CheckError:
            assert caught


def test_a_result_over_its_operand_has_its_size():
    """Elementwise, but four bytes are written where one was read: the next are lost."""
    text = """
HloModule m, is_scheduled=true

ENTRY e {
  x = u8[64]{0} parameter(0)
  a = u8[64]{0} not(x)
  b = f32[64]{0} convert(a)
  ROOT c = f32[64]{0} negate(b)
}
"""
    module = from_hlo_text(text)
    for start, caught in ((0, True), (256, False)):
        found = xla_pb2.BufferAssignmentProto()
        places = {"x": (0, 0, 64), "a": (1, start, 64), "b": (1, 0, 256), "c": (2, 0, 256)}
        for number, (name, (allocation, offset, size)) in enumerate(places.items()):
            buffer = found.logical_buffers.add(id=number, size=size)
            buffer.defined_at.instruction_name = name
            home = found.buffer_allocations.add(index=allocation, size=offset + size)
            home.assigned.add(logical_buffer_id=number, offset=offset, size=size)
        with pytest.raises(CheckError, match="b writes b over a") if caught else nullcontext():
            check_executable(module, "cpu", assignment=found.SerializeToString())


def test_a_run_of_all_kinds(monkeypatch):
    """In processes of their own, compiled and run; XLA's compile is kept short."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    rows = driver.run(["scanned", "updates"], tuple(KINDS), count=20, seed=3, row=lambda _: None)
    sound = len(driver.UNMUTATED)
    expected = ["scanned"] * sound + ["updates"] * sound
    assert [r.case for r in rows if r.kind in driver.UNMUTATED] == expected
    assert not report.wrong_lines(rows)
    seeded = [r for r in rows if r.kind not in driver.UNMUTATED]
    assert len(seeded) == 20
    assert sum(r.differs and r.caught for r in seeded) >= 6
    assert sum(not r.caught for r in seeded) >= 1  # harmless ones pass


def test_faults_of_an_executables_thunks_are_run_and_audited(monkeypatch):
    monkeypatch.setattr(driver, "_SECONDS", 6.0)  # two operands in one place: it hangs
    rows = driver.run(["looped"], THUNKS, count=10, seed=5, audit=True, row=lambda _: None)
    assert not report.wrong_lines(rows)
    assert {r.kind for r in rows} == {*THUNKS, *driver.UNMUTATED}
    assert sum(r.differs and r.caught for r in rows) >= 3


def test_a_missed_mutant_is_said():
    row = driver.Row("mlp", "results", 3, "elements 0 and 1 of r exchanged", "crashed")
    assert row.differs and row.is_wrong
    assert report.wrong_lines([row]) == ["mlp, results 3, missed: elements 0 and 1 of r exchanged"]
    assert report.kinds_table([row]).rows[0] == ("results", *"100010100")
    alarm = driver.Row("mlp", "planned", 0, "", "same", executable="a reads b")
    assert report.wrong_lines([alarm]) == ["mlp, planned module without a fault: a reads b"]
    assert not driver.Row("mlp", "order", 1, "", "refused").is_wrong


SQUARES = """
HloModule m, is_scheduled=true

f {
  p = f32[4,4]{1,0} parameter(0)
  q = f32[4,4]{1,0} parameter(1)
  ROOT d = f32[4,4]{1,0} subtract(p, q)
}

body {
  s = (f32[4,4]{1,0}, s32[]) parameter(0)
  x = f32[4,4]{1,0} get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  m = s32[] add(n, one)
  g = f32[4,4]{1,0} fusion(x, x), kind=kLoop, calls=f
  ROOT r = (f32[4,4]{1,0}, s32[]) tuple(g, m)
}

condition {
  s = (f32[4,4]{1,0}, s32[]) parameter(0)
  n = s32[] get-tuple-element(s), index=1
  three = s32[] constant(3)
  ROOT r = pred[] compare(n, three), direction=LT
}

ENTRY e {
  x = f32[4,4]{1,0} parameter(0)
  y = f32[4,4]{1,0} parameter(1)
  h = f32[4,4]{1,0} fusion(x, y), kind=kLoop, calls=f
  zero = s32[] constant(0)
  first = s32[] copy(zero)
  t = (f32[4,4]{1,0}, s32[]) tuple(h, first)
  w = (f32[4,4]{1,0}, s32[]) while(t), condition=condition, body=body
  z = f32[4,4]{1,0} get-tuple-element(w), index=0
  ROOT r = f32[4,4]{1,0} transpose(z), dimensions={1,0}
}
"""


@pytest.mark.parametrize(
    "kind",
    [*(f"layout_{part}" for part in "parameter fusion element state any".split())]
    + [*(f"text_{part}" for part in "integer direction dimensions operands index type".split())],
)
def test_a_substitution_in_the_text_is_caught(kind):
    found = verdicts(SQUARES, kind)
    assert found and all(found.values())


def test_a_text_read_back_has_no_fault():
    module = from_hlo_text(SQUARES)
    assert not verdict(module, read_back(module))


def test_a_text_read_back_has_the_numbers_of_its_module():
    """By these XLA's buffer assignment decides where two values are alike."""
    module = xla_pb2.HloModuleProto.FromString(from_hlo_text(SQUARES))
    for c in module.computations:
        for i in c.instructions:
            i.id += 1000
            i.operand_ids[:] = [k + 1000 for k in i.operand_ids]
            i.control_predecessor_ids[:] = [k + 1000 for k in i.control_predecessor_ids]
        c.root_id += 1000
    for sequence in module.schedule.sequences.values():
        sequence.instruction_ids[:] = [k + 1000 for k in sequence.instruction_ids]
    again = xla_pb2.HloModuleProto.FromString(read_back(module.SerializeToString()))

    def numbers(module):
        return [
            (c.id, c.root_id, [(i.id, i.name, *i.operand_ids) for i in c.instructions])
            for c in module.computations
        ]

    assert numbers(again) == numbers(module) and again.schedule == module.schedule


def test_a_text_read_back_keeps_what_xla_compiles_by():
    call = 'ROOT r = f32[4] call(p), to_apply=g, frontend_attributes={xla_cpu_small_call="true"}'
    body = "g {\n p = f32[4] parameter(0)\n ROOT s = f32[4] sine(p)\n}\n"
    module = from_hlo_text(f"HloModule m\n{body}ENTRY e {{\n p = f32[4] parameter(0)\n {call}\n}}")
    assert b"xla_cpu_small_call" in module and b"xla_cpu_small_call" in read_back(module)


BITCAST = """
HloModule m, is_scheduled=true

ENTRY e {
  p = f32[2,4]{1,0} parameter(0)
  a = f32[2,4]{1,0} negate(p)
  b = f32[8]{0} bitcast(a)
  c = f32[2,4]{1,0} cosine(p)
  ROOT t = (f32[8]{0}, f32[2,4]{1,0}) tuple(b, c)
}
"""


def test_another_layout_under_a_bitcast_is_another_program_and_no_fault():
    subject = AuditedSubject.__new__(AuditedSubject)
    subject.planned = from_hlo_text(BITCAST)
    for name, is_fault in (("a", False), ("c", True)):
        line = f"{name} = f32[2,4]{{1,0}}"
        changed = from_hlo_text(BITCAST.replace(line, line.replace("1,0", "0,1")))
        assert subject._is_fault("layout_call", changed) == is_fault

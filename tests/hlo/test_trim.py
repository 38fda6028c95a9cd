"""Outputs that nothing reads once there are clones: dropped as XLA would, and what referees say."""

import dataclasses
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from hlo.module import module_from_bytes, parse_module_proto
from hlo.parse import from_hlo_text
from hlo.read import with_program_order
from hlo.rewrite.clones import Clone
from olla_xla import planner
from olla_xla.check.executable import check_rewrite
from olla_xla.compile.accounting import final_module
from olla_xla.compile.assignment import check_compiled, dump_options
from olla_xla.compile.capture import capture
from olla_xla.compile.order import order_difference
from olla_xla.errors import CheckError
from olla_xla.problem.options import PlanOptions
from tests.support.compiles import on_h100
from tests.support.rewrites import check_cloned, with_clones

# A fusion of three outputs from two operands; a and b are read early, c by the last but one.
TEXT = """HloModule m
g { gp = f32[64] parameter(0)
  ROOT gn = f32[64] negate(gp) }
f { p = f32[64] parameter(0)
  q = f32[64] parameter(1)
  s = f32[64] sine(p)
  k = f32[64] cosine(q)
  m = f32[64] multiply(s, p)
  ROOT t = (f32[64], f32[64], f32[64]) tuple(s, m, k) }
ENTRY e { x = f32[64] parameter(0)
  w = f32[64] fusion(x), kind=kLoop, calls=g
  y = (f32[64], f32[64], f32[64]) fusion(x, w), kind=kLoop, calls=f
  a = f32[64] get-tuple-element(y), index=0
  b = f32[64] get-tuple-element(y), index=1
  c = f32[64] get-tuple-element(y), index=2
  d = f32[64] add(a, b)
  h = f32[64] tanh(d)
  i = f32[64] subtract(h, b)
  ROOT r = f32[64] divide(i, c) }"""
LATE_C = [Clone("y.remat", "y", ("x", "w")), Clone("c.remat", "c", ("y.remat",), (("r", 1),))]
LATE_B = [Clone("y.remat", "y", ("x", "w")), Clone("b.remat", "b", ("y.remat",), (("i", 1),))]
LATE_W = [Clone("w.remat", "w", ("x",)), Clone("y.remat", "y", ("x", "w.remat")), LATE_B[1]]


def given(text=TEXT):
    return with_program_order(from_hlo_text(text))


def entry(module):
    return {i.name: i for i in module_from_bytes(module).entry.instructions}


def names(instructions):
    return [i.name for i in instructions]


OPERATIONS = {
    "add": operator.add,
    "cosine": math.cos,
    "divide": operator.truediv,
    "multiply": operator.mul,
    "negate": operator.neg,
    "sine": math.sin,
    "subtract": operator.sub,
    "tanh": math.tanh,
}


def result(computation, arguments):
    """What a computation gives for numbers, by its schedule where it has one."""
    values = {}
    for i in computation.schedule or computation.instructions:
        operands = [values[o] for o in i.operands]
        if i.opcode == "parameter":
            values[i] = arguments[i.parameter_number]
        elif i.opcode == "fusion":
            values[i] = result(i.called[0], operands)
        elif i.opcode == "tuple":
            values[i] = tuple(operands)
        elif i.opcode == "get-tuple-element":
            values[i] = operands[0][i.tuple_index]
        else:
            values[i] = OPERATIONS[i.opcode](*operands)
    return values[computation.root]


def same_results(before, after):
    pair = [module_from_bytes(m).entry for m in (before, after)]
    for x in (0.3, 1.7):
        arguments = [x + k for k in range(len(pair[0].parameters))]
        assert result(pair[0], arguments) == result(pair[1], arguments)


def all_is_read(module):
    """Whether XLA would find nothing to drop."""
    view = module_from_bytes(module)
    for i in view.entry.instructions:
        assert i.users or i.is_root or i.opcode == "parameter", i
        if i.opcode != "fusion":
            continue
        (body,) = i.called
        assert len(body.parameters) == len(i.operands)
        assert body.root.shape == i.shape
        assert all(k.users or k.is_root for k in body.instructions), i
        if i.shape.is_tuple:
            assert {k.tuple_index for k in i.users} == set(range(len(i.shape.elements)))
    return set(view.entry.schedule) == set(view.entry.instructions)


def test_a_clone_and_its_original_keep_what_is_read():
    before = given()
    after = with_clones(before, LATE_C)
    check_cloned(before, after, "cuda")
    same_results(before, after)
    assert all_is_read(after)
    found = entry(after)
    # The original is left with two outputs and needs w no more.
    assert found["y"].shape.elements == (found["a"].shape, found["b"].shape)
    assert names(found["y"].operands) == ["x"] and "c" not in found
    assert names(found["y"].called[0].instructions) == ["p", "s", "m", "t"]
    # The clone hands its one output over as it is.
    assert found["y.remat"].shape == found["a"].shape and "c.remat" not in found
    assert names(found["y.remat"].operands) == ["w"]
    assert names(found["r"].operands) == ["i", "y.remat"]
    assert [i.opcode for i in found["y.remat"].called[0].instructions] == ["parameter", "cosine"]
    order = names(module_from_bytes(after).entry.schedule)
    assert order == ["x", "w", "y", "a", "b", "d", "h", "i", "y.remat", "r"]


def test_a_clone_is_left_with_what_rounds_nothing():
    """By whatever code, it is the same; the fusion that it is a clone of rounds others."""
    compared = "l = pred[64] compare(p, q), direction=LT\n  k = f32[64] select(l, q, p)"
    text = TEXT.replace("k = f32[64] cosine(q)", compared)
    before = given(text)
    for loops in (False, True):
        after = with_clones(before, LATE_C)
        assert "y.remat" in entry(after)
        check_rewrite(before, after, "cuda", loops=loops)


def test_outputs_are_numbered_anew():
    text = TEXT.replace("divide(i, c)", "divide(i, a)").replace("tanh(d)", "add(d, c)")
    made = [Clone("y.remat", "y", ("x", "w")), Clone("a.remat", "a", ("y.remat",), (("d", 0),))]
    made[1] = dataclasses.replace(made[1], readers=(("d", 0), ("r", 1)))
    before = given(text)
    after = with_clones(before, made)
    check_cloned(before, after, "cuda")
    same_results(before, after)
    assert all_is_read(after)
    found = entry(after)
    assert [found[n].tuple_index for n in "bc"] == [0, 1] and "a" not in found
    assert names(found["d"].operands) == ["y.remat", "b"]


def test_a_clone_that_only_a_dropped_output_read_disappears():
    before = given()
    after = with_clones(before, LATE_W)
    check_cloned(before, after, "cuda")
    same_results(before, after)
    assert all_is_read(after)
    found = entry(after)
    assert "w.remat" not in found and names(found["y.remat"].operands) == ["x"]
    assert len(found["y"].shape.elements) == 3, "the original's are all read"


def test_the_root_may_be_an_output():
    text = TEXT.replace("  ROOT r = f32[64] divide(i, c)", "  z = f32[64] divide(i, a)")
    text = text.replace("  c = f32[64] get", "  ROOT c = f32[64] get").replace("(i, a)", "(i, i)")
    made = [
        Clone("y.remat", "y", ("x", "w")),
        Clone("a.remat", "a", ("y.remat",), (("d", 0),)),
        Clone("b.remat", "b", ("y.remat",), (("d", 1), ("i", 1))),
    ]
    before = given(text)
    after = with_clones(before, made)
    check_cloned(before, after, "cuda")
    same_results(before, after)
    view = module_from_bytes(after)
    assert view.entry.root.name == "y" and not view.entry.root.shape.is_tuple


def changed(module, change):
    """The module with its proto changed: change(instructions by name, computations by id)."""
    proto = parse_module_proto(module)
    instructions = {i.name: i for c in proto.computations for i in c.instructions}
    change(instructions, {c.id: c for c in proto.computations})
    for c in proto.computations:  # operands stand first
        left, listed = list(c.instructions), []
        while left:
            known = {i.id for i in listed}
            listed.append(next(i for i in left if known.issuperset(i.operand_ids)))
            left.remove(listed[-1])
        copy = type(c)(instructions=listed)
        del c.instructions[:]
        c.instructions.extend(copy.instructions)
    return proto.SerializeToString(deterministic=True)


def control(instructions, _):
    instructions["h"].control_predecessor_ids.append(instructions["y"].id)


def on_operand(instructions, _):
    entry = instructions["y"].output_operand_aliasing.add()
    entry.output_shape_index.append(0)


WHOLE = {
    "custom": lambda: given(TEXT.replace("(x, w), kind=kLoop", "(x, w), kind=kCustom")),
    "sharded": lambda: changed(given(), lambda i, c: i["t"].sharding.SetInParent()),
    "control": lambda: changed(given(), control),
    "aliased": lambda: changed(given(), on_operand),
    "read_whole": lambda: given(
        TEXT.replace(
            "ROOT r = f32[64] divide(i, c)",
            "r = f32[64] divide(i, c)\n"
            "  ROOT v = (f32[64], (f32[64], f32[64], f32[64])) tuple(r, y)",
        )
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_where_xla_would_drop_nothing(name):
    before = WHOLE[name]()
    after = with_clones(before, LATE_C)
    if name != "aliased":  # its operand may not be read again
        check_cloned(before, after, "cuda")
    assert len(entry(after)["y"].shape.elements) == 3
    if name in ("custom", "sharded", "aliased"):
        assert len(entry(after)["y.remat"].shape.elements) == 3


# Random modules.


def random_case(random):
    """A chain of fusions with several outputs, and clones of some of them."""
    fusions, bodies, lines = 6, [], ["x = f32[8] parameter(0)", "w = f32[8] parameter(1)"]
    values, outputs, readers = ["x", "w"], {}, {}
    for k in range(fusions):
        kind = random.choice(["add", "multiply", "subtract"])
        parts = [f"u = f32[8] {kind}(p, q)", "v = f32[8] sine(p)", "z = f32[8] cosine(q)"]
        kept = sorted(random.choice(3, random.integers(2, 4), replace=False))
        shape = f"({', '.join(['f32[8]'] * len(kept))})"
        bodies.append(
            f"f{k} {{ p = f32[8] parameter(0)\n q = f32[8] parameter(1)\n "
            + "\n ".join(parts[n] for n in kept)
            + f"\n ROOT t = {shape} tuple({', '.join('uvz'[n] for n in kept)}) }}"
        )
        operands = [str(o) for o in random.choice(values[-4:], 2)]
        lines.append(f"y{k} = {shape} fusion({', '.join(operands)}), kind=kLoop, calls=f{k}")
        for number, operand in enumerate(operands):
            readers.setdefault(operand, []).append((f"y{k}", number))
        outputs[f"y{k}"] = [f"y{k}o{n}" for n in range(len(kept))]
        for n, name in enumerate(outputs[f"y{k}"]):
            lines.append(f"{name} = f32[8] get-tuple-element(y{k}), index={n}")
        values += outputs[f"y{k}"]
    unread = [v for v in values if v not in readers and v not in ("x", "w")]
    for number, name in enumerate(unread):
        readers.setdefault(name, []).append(("r", number))
    lines.append(f"ROOT r = ({', '.join(['f32[8]'] * len(unread))}) tuple({', '.join(unread)})")
    text = "HloModule m\n" + "\n".join(bodies) + "\nENTRY e { " + "\n ".join(lines) + " }"
    return given(text), random_clones(random, given(text), outputs, readers)


def random_clones(random, module, outputs, readers):
    made, version = [], {}
    found = entry(module)
    for fusion, parts in outputs.items():
        moved = {
            part: [r for r in readers.get(part, ()) if random.random() < 0.5] for part in parts
        }
        if random.random() < 0.3 or not any(moved.values()):
            continue
        operands = tuple(
            version[o.name] if o.name in version and random.random() < 0.7 else o.name
            for o in found[fusion].operands
        )
        made.append(Clone(f"{fusion}.remat", fusion, operands))
        for part, gone in moved.items():
            if gone:
                name = version[part] = f"{part}.remat"
                made.append(Clone(name, part, (f"{fusion}.remat",), tuple(gone)))
    return made


@pytest.mark.parametrize("seed", range(40))
def test_random_modules(seed):
    before, made = random_case(np.random.default_rng(seed))
    after = with_clones(before, made)
    check_cloned(before, after, "cuda")
    same_results(before, after)
    assert all_is_read(after)


def planned(before, after, made, aliases=()):
    """A plan for the module with clones, in that module's order."""
    base = planner.plan_module(before, PlanOptions(step_limit=1), target="cpu")
    return dataclasses.replace(
        base,
        order=planner.module_order(after),
        aliases=dict(aliases),
        clones=tuple((c.name, c.original, c.operands, c.readers) for c in made),
    )


def test_an_executable_need_not_have_clones_that_disappeared():
    before = given()
    after = with_clones(before, LATE_W)
    plan = planned(before, after, LATE_W)
    assert order_difference(plan, after) == ""
    lost = order_difference(plan, before)
    assert lost == "1 of 1 clones are not in the executable (y.remat)"


# The referee.


def exchanged(field, *names):
    """Exchanges what two instructions have in a field, or the values of a repeated one."""

    def change(instructions, _):
        found = [instructions[n] for n in names]
        if len(found) == 1:
            values = getattr(found[0], field)
            values[:] = list(reversed(values))
        else:
            one, two = (getattr(i, field) for i in found)
            setattr(found[0], field, two)
            setattr(found[1], field, one)

    return change


def operation(name, opcode):
    def change(instructions, _):
        instructions[name].opcode = opcode

    return change


def rooted_elsewhere(instructions, computations):
    body = computations[instructions["y.remat"].called_computation_ids[0]]
    body.root_id = next(i.id for i in body.instructions if i.opcode == "parameter")


def reads(name, number, other):
    def change(instructions, _):
        instructions[name].operand_ids[number] = instructions[other].id

    return change


DAMAGE = {
    "outputs_exchanged": exchanged("operand_ids", "t"),
    "indices_exchanged": exchanged("tuple_index", "a", "b"),
    "index_out_of_range": lambda i, c: setattr(i["b"], "tuple_index", 2),
    "operation_in_an_original": operation("m", "add"),
    "operation_in_a_clone": operation("k.y.remat", "sine"),
    "other_root": rooted_elsewhere,
    "other_operand": reads("y", 0, "w"),
    "operands_inside": reads("m", 0, "p"),
    "operand_of_a_clone": reads("y.remat", 0, "x"),
    "reader_of_another_output": reads("d", 0, "y.remat"),
    "tuple_read_as_array": reads("d", 0, "y"),
    "reader_of_another_fusion": reads("d", 0, "w"),
    "kind": lambda i, c: setattr(i["y"], "fusion_kind", "kInput"),
    "too_many_operands": lambda i, c: i["y"].operand_ids.append(i["w"].id),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_the_referee_rejects(name):
    before = given()
    after = changed(with_clones(before, LATE_C), DAMAGE[name])
    with pytest.raises(CheckError):
        check_cloned(before, after, "cuda")


# XLA itself.


def two_outputs(x, u):
    """Two values of one fusion, one read early and one late, and much memory in between."""
    t = jnp.sin(x) + u
    early, late = jnp.maximum(t, 0), jnp.exp(t)
    a = jnp.sort(early, axis=0)
    b = jnp.sort(jnp.concatenate([a, a * 2, a + 1, a - 1]), axis=0)
    s, r = jax.lax.sort((jnp.sort(b[::4], axis=0), late), dimension=0, num_keys=1)
    return jnp.sum(s * r)


def test_xla_has_nothing_left_to_drop(tmp_path):
    shapes = on_h100([jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 2)
    step = olla_xla.plan(two_outputs, max_overhead=0.3, time_limit=20, step_limit=5000)
    compiled = step.lower(*shapes).compile(compiler_options=dump_options(tmp_path))
    plan = compiled.plan
    assert compiled.planned, compiled.reason
    report = check_compiled(compiled, plan, tmp_path)
    assert abs(report.error) < 1e-6 and report.elsewhere == 0
    lowered = jax.jit(two_outputs).lower(*shapes)
    data = capture(lowered).module
    assert planner.module_order(data).keys() == plan.order.keys()
    (made,) = [name for name, original, *_ in plan.clones if not original.startswith("get-")]
    given = entry(data)
    wanted = module_from_bytes(planner.apply_plan(data, plan)).entry
    assert given[made.removesuffix(".remat")].shape.is_tuple
    ours = {i.name: i for i in wanted.instructions}
    assert not ours[made].shape.is_tuple
    # In the same order too, which decides ties between buffers.
    final = module_from_bytes(final_module(compiled._stage)).entry
    assert names(wanted.instructions) == names(final.instructions)
    theirs = {i.name: i for i in final.instructions}
    for name, i in ours.items():
        assert names(i.operands) == names(theirs[name].operands)
        assert i.shape == theirs[name].shape and i.tuple_index == theirs[name].tuple_index

"""Steps for a TPU that is not there: what XLA:TPU assigns, analyses, plans, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout

import olla_xla
from hlo import xla_pb2
from hlo.module import HloError, module_from_bytes
from hlo.tpu_executable import read_tpu_assignment
from hlo.values import analyse
from olla_xla import targets
from olla_xla.analysis.html_page import Texts, view_tables
from olla_xla.check.executable import check_executable, results_digest
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.compile.assignment import check_overlaps
from olla_xla.errors import CheckError, InputError
from olla_xla.memory.module_state import PlannedModule
from olla_xla.tools.capture import capture
from tests.support.compiles import STEPS
from tests.support.tpu import tpu_step, v5e

pytestmark = pytest.mark.tpu


@pytest.mark.parametrize("name", STEPS)
def test_sizes_and_totals_are_those_of_xla(name):
    step = tpu_step(name)
    values = {v.name: v for v in analyse(module_from_bytes(step.captured.final), "tpu").values}
    compared = 0
    for allocation in step.assignment.allocations:
        for place in allocation.assigned:
            if (value := values.get(place.name)) is not None:
                assert (value.table_bytes or value.shape.bytes) == place.size, place.name
                compared += 1
    assert compared > 3
    assert step.assignment.total_bytes == step.captured.assigned_bytes


@pytest.mark.parametrize("name", STEPS)
def test_the_referee_follows_memory_space_assignment(name):
    step = tpu_step(name).captured
    results = results_digest(step.module, "tpu")
    check_executable(step.final, "tpu", results=results, assignment=step.assignment)


def test_the_referee_objects_to_another_result():
    step = tpu_step("two_layers").captured
    proto = xla_pb2.HloModuleProto.FromString(step.final)
    changed = 0
    for computation in proto.computations:
        for i in computation.instructions:
            if i.opcode == "subtract":
                i.operand_ids[:] = list(i.operand_ids)[::-1]
                changed += 1
    assert changed
    results = results_digest(step.module, "tpu")
    with pytest.raises(CheckError):
        check_executable(proto.SerializeToString(), "tpu", results=results)


def test_the_referee_objects_to_parts_that_lie_in_another_order():
    """An array that comes to VMEM in slices is what they are together, where they lie."""
    step = tpu_step("scan_gradient").captured
    proto = xla_pb2.HloModuleProto.FromString(step.final)
    of = {i.id: i for c in proto.computations for i in c.instructions}
    joined = next(i for i in of.values() if i.custom_call_target == "ConcatBitcast")
    starts = [of[of[done].operand_ids[0]] for done in joined.operand_ids[:2]]
    called = [start.called_computation_ids[0] for start in starts]
    slices = {c.root_id for c in proto.computations if c.id in called}
    assignment = xla_pb2.BufferAssignmentProto.FromString(step.assignment)
    made = {b.id for b in assignment.logical_buffers if b.defined_at.instruction_id in slices}
    places = [
        place
        for allocation in assignment.buffer_allocations
        for place in allocation.assigned
        if place.logical_buffer_id in made
    ]
    assert len(places) == 2 and places[0].size == places[1].size
    places[0].offset, places[1].offset = places[1].offset, places[0].offset
    with pytest.raises(CheckError):
        check_executable(step.final, "tpu", assignment=assignment.SerializeToString())


def _layers(p, x):
    def loss(p):
        h = x
        for w in p:
            h = jnp.tanh(h @ w)
        return (h**2).mean()

    value, gradient = jax.value_and_grad(loss)(p)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, gradient), value


def _of(rows, width, count=2):
    shape = jax.ShapeDtypeStruct((width, width), jnp.float32)
    return [shape] * count, jax.ShapeDtypeStruct((rows, width), jnp.float32)


def test_analysis_sums_to_the_total_and_tells_padding(tmp_path):
    rows = Layout((0, 1), ((8, 128),))  # XLA itself would lay it out the other way
    where = Format(rows, jax.sharding.SingleDeviceSharding(v5e().device))
    padded = jax.jit(lambda x: x * 2, in_shardings=where)
    shape = jax.ShapeDtypeStruct((65536, 3), jnp.float32)
    found = olla_xla.analyze(padded, shape, target="v5e")
    assert sum(found.xla.by_category().values()) == found.xla.total_bytes
    wide = max(found.xla.tensors, key=lambda t: t.padding)
    assert wide.bytes == 65536 * 128 * 4 and wide.padding == 65536 * 125 * 4
    assert (wide.tighter, wide.tighter_bytes) == ("f32[3,65536]", 8 * 65536 * 4)
    assert "padding, as arrays take whole tiles" in str(found) and wide.tighter in str(found)
    texts = Texts()
    table = view_tables(found.xla, texts)
    columns = table["columns"]
    k = columns["padding"].index(wide.padding)
    assert table["padded"] and texts.all[columns["tighter"][k]] == "f32[3,65536] 2.00 MB"
    found.html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert f"<th>of that padding</th><td>{found.xla.padding / 2**20:.2f} MB</td>" in page


def test_what_does_not_fit_is_analysed():
    v5e()
    found = olla_xla.analyze(
        jax.jit(_layers, donate_argnums=0), *_of(1 << 19, 2048, 6), target="v5e"
    )
    assert found.available_bytes is not None
    assert found.xla.total_bytes > found.available_bytes
    assert found.xla.found_share > 0.95
    assert "XLA refuses the step: the device has" in str(found)


def test_a_plan_is_assigned_no_more_than_xla():
    where = v5e()
    arguments = where.place(_of(1024, 256))
    own = jax.jit(_layers, donate_argnums=0).lower(*arguments).compile()
    planned = olla_xla.plan(_layers, donate_argnums=0, max_overhead=0.3, seed=0, step_limit=1000)
    compiled = planned.lower(*arguments).compile()
    assert "objects" not in compiled.reason
    totals = [
        m.argument_size_in_bytes
        + m.output_size_in_bytes
        - m.alias_size_in_bytes
        + m.temp_size_in_bytes
        for m in (own.memory_analysis(), compiled.memory_analysis())
    ]
    assert totals[1] <= totals[0]


@pytest.mark.parametrize(
    "name, count, topology, shape",
    [
        ("v5e", 1, "", (1, 1)),
        ("v5e", 8, "", (2, 4)),
        ("v5p", 4, "", (2, 2)),
        ("v6e", 4, "1x4", (1, 4)),
    ],
)
def test_topologies(name, count, topology, shape):
    v5e()
    found = targets.target(name, count, topology)
    devices = found.devices
    assert len(devices) == count and found.platform == "tpu"
    coordinates = np.array([d.coords for d in devices])
    assert tuple(coordinates.max(0)[: len(shape)] + 1) == shape


def test_two_prints_of_an_iteration_are_told_by_their_rendezvous():
    """XLA numbers their channels anew after its scheduler, and their flags share memory."""

    def printed(x, w):
        def layer(x, _):
            x = jnp.tanh(x @ w)
            jax.debug.print("first {}", x)
            jax.debug.print("second {}", x)
            return x, None

        return jax.lax.scan(layer, x, None, length=4)[0]

    shapes = v5e().place((jax.ShapeDtypeStruct((16, 16), jnp.float32),) * 2)
    found = capture(jax.jit(printed).lower(*shapes))
    results = results_digest(found.module, "tpu")
    check_executable(found.final, "tpu", results=results, assignment=found.assignment)
    proto = xla_pb2.HloModuleProto.FromString(found.final)
    sent = [i for c in proto.computations for i in c.instructions if i.opcode.startswith("send")]
    numbers = {i.frontend_attributes.map["_xla_host_transfer_rendezvous"] for i in sent}
    other = dict(zip(sorted(numbers), sorted(numbers, reverse=True), strict=True))
    for i in sent:
        known = i.frontend_attributes.map
        known["_xla_host_transfer_rendezvous"] = other[known["_xla_host_transfer_rendezvous"]]
    assert len(numbers) == 2
    with pytest.raises(CheckError, match="results differ"):
        check_executable(proto.SerializeToString(), "tpu", results=results)


def _masked(p, x):
    """Layers of which a scan keeps the signs that the ReLU met, as booleans."""

    def layer(x, p):
        w, b, v = p
        return jax.nn.relu(x @ w + b) @ v, None

    return (jax.lax.scan(layer, x, p)[0] ** 2).sum()


def test_prints_that_xla_copied_into_two_branches_are_planned():
    """Transfers of one channel must have equal attributes; a plan notes none on them."""

    def printed(x, w):
        def layer(x, w):
            x = jnp.tanh(x @ w)

            def loud(x):
                jax.debug.print("{}", x)
                return x * 2

            return jax.lax.cond(x.sum() > 0, loud, lambda x: x, x), x.mean()

        x, means = jax.lax.scan(layer, x, w, unroll=2)
        return x.sum() + means.sum()

    shapes = jax.ShapeDtypeStruct((128, 128), jnp.float32), jax.ShapeDtypeStruct((4, 128, 128), "f")
    planned = olla_xla.plan(jax.grad(printed, 1), max_overhead=0.4)
    compiled = planned.lower(*v5e().place(shapes)).compile()
    assert compiled.plan is not None and compiled.plan.refused == 0


def _is_one(shape):
    return isinstance(shape[0], int)


def test_a_fusion_may_give_arrays_other_tiles_within():
    """XLA:TPU keeps booleans in tiles of 32 rows, and of 8 within a fusion."""
    shapes = ((6, 16, 64), (6, 64), (6, 64, 16)), (64, 16)
    given = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shapes, is_leaf=_is_one)
    found = capture(jax.jit(jax.grad(_masked)).lower(*v5e().place(given)))
    results = results_digest(found.module, "tpu")
    check_executable(found.final, "tpu", results=results, assignment=found.assignment)
    proto = xla_pb2.HloModuleProto.FromString(found.final)
    entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
    loop = next(i for i in entry.instructions if i.opcode == "while")
    tiled = next(s for s in loop.shape.tuple_shapes if s.element_type == 1 and s.dimensions)
    tiled.layout.tiles[0].dimensions[0] //= 4
    with pytest.raises(CheckError, match="in a layout that is not the array's"):
        check_executable(proto.SerializeToString(), "tpu")


def test_signs_that_a_relu_met_are_computed_again():
    """A nested fusion copies the booleans to other tiles, of the shorter array as of the whole."""
    shapes = ((8, 256, 1024), (8, 1024), (8, 1024, 256)), (4096, 256)
    given = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shapes, is_leaf=_is_one)
    planned = olla_xla.plan(jax.grad(_masked), max_overhead=0.4)
    plan = planned.lower(*v5e().place(given)).compile().plan
    assert plan.loops and plan.refused == 0
    assert plan.assigned_bytes < 0.6 * plan.xla_bytes


def test_a_scan_that_goes_back_keeps_its_states():
    """What its forward loop writes, it writes at an index that XLA reads as an operand."""

    def loss(p, x):
        def layer(x, p):
            y = jnp.tanh(x @ p[0])
            return x + jnp.sin(y) @ p[1], None

        return (jax.lax.scan(layer, x, p, reverse=True)[0] ** 2).sum()

    shapes = ((8, 256, 1024), (8, 1024, 256)), (4096, 256)
    given = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shapes, is_leaf=_is_one)
    planned = olla_xla.plan(jax.grad(loss), max_overhead=0.4)
    plan = planned.lower(*v5e().place(given)).compile().plan
    assert plan.loops and plan.refused == 0
    assert plan.assigned_bytes < 0.6 * plan.xla_bytes


def _equal_at_first(w, x):
    """A fusion of the first iteration reads its carry and the batch, which are equal then."""
    w = w.astype(jnp.bfloat16)

    def layer(c, _):
        y = (c.astype(jnp.bfloat16) @ w).astype(jnp.float32) * x
        return y * y + x * 0.5, y.mean()

    c, means = jax.lax.scan(layer, x, None, length=6)
    return (c**2).mean() + means.sum()


def test_a_result_that_runs_again_alone_depends_on_the_arrays_that_it_reads():
    given = v5e().place(
        (
            jax.ShapeDtypeStruct((64, 64), jnp.float32),
            jax.ShapeDtypeStruct((128, 64), jnp.float32),
        )
    )
    planned = olla_xla.plan(jax.grad(_equal_at_first), max_overhead=0.5)
    plan = planned.lower(*given).compile().plan
    assert plan.proposed and not plan.refused


def test_what_is_put_into_an_array_is_told_in_whatever_order_its_elements_are():
    """A convert of the carry is kept beside it: made again, it reads a slice, which is moved."""

    def loss(w, x):
        def layer(x, w):
            low = x.astype(jnp.bfloat16)
            m = jnp.sin(jnp.tanh((low @ w).astype(jnp.float32)) * x + x)
            return jnp.tanh(0.3 * (m + jnp.sin(m * x + x) + low.astype(jnp.float32) * x)), None

        return jax.lax.scan(layer, x, w.astype(jnp.bfloat16))[0].sum()

    given = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, 16, 16), (128, 16))]
    planned = olla_xla.plan(jax.grad(loss), max_overhead=0.4)
    plan = planned.lower(*v5e().place(tuple(given))).compile().plan
    assert plan.proposed and not plan.refused


def test_arrays_of_heads_get_what_is_made_again_in_other_tiles():
    """XLA:TPU refuses a fusion with this bitcast: rows of 16 in tiles of 8, as 4 by 4 in tiles."""

    def loss(p, x):
        def layer(x, p):
            q, k, v = (jnp.einsum("bsd,de->bse", x, w).reshape(2, 16, 4, 4) for w in p[:3])
            a = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", q, k).astype(jnp.float32))
            heads = jnp.einsum("bhst,bthd->bshd", a.astype(x.dtype), v)
            x = x + heads.reshape(2, 16, 16) @ p[3]
            return x + jax.nn.silu(x @ p[4]) @ p[5], None

        weights = jax.tree.map(lambda w: w.astype(jnp.bfloat16), p)
        return (jax.lax.scan(layer, x, weights)[0].astype(jnp.float32) ** 2).sum()

    shapes = [(4, 16, 16)] * 4 + [(4, 16, 64), (4, 64, 16)]
    weights = tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)
    given = v5e().place((weights, jax.ShapeDtypeStruct((2, 16, 16), jnp.bfloat16)))
    plan = olla_xla.plan(jax.grad(loss), max_overhead=0.4).lower(*given).compile().plan
    assert plan is not None and plan.proposed and not plan.refused


def test_arrays_are_joined_where_xla_can_make_the_slice():
    """A fusion that reads and writes a slice gets a copy of it, on a TPU at the counter alone."""

    def backwards(c, x):
        return jax.lax.scan(lambda x, c: (x + c.sum(), jnp.tanh(c) + x), x, c, reverse=True)

    shapes = jax.ShapeDtypeStruct((6, 256, 512), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32)
    planned = olla_xla.plan(backwards, donate_argnums=0, max_overhead=0.1)
    assert planned.lower(*v5e().place(shapes)).compile().plan.refused == 0


def test_topologies_that_are_none():
    v5e()
    with pytest.raises(InputError, match="power of two"):
        targets.target("v5e", 3)
    with pytest.raises(InputError, match="such as 2x2"):
        targets.target("v5e", topology="0x7")
    with pytest.raises(InputError, match="for TPUs"):
        targets.target("cpu", topology="2x2")


def test_an_executable_that_is_none():
    with pytest.raises(HloError):
        read_tpu_assignment(b"\x00nothing", bytes)


def test_a_step_over_four_chips():
    where = v5e(4)
    mesh = jax.sharding.Mesh(np.array(where.devices), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    weights, x = _of(1024, 256)
    shapes = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=rows), (weights, x)
    )
    lowered = jax.jit(_layers, donate_argnums=0).lower(*shapes)
    found = capture(lowered)
    results = results_digest(found.module, "tpu")
    check_executable(found.final, "tpu", results=results, assignment=found.assignment)
    assert b"all-gather" in found.module or b"all-reduce" in found.module
    compiled = (
        olla_xla.plan(_layers, donate_argnums=0, max_overhead=0.2, step_limit=1000)
        .lower(*shapes)
        .compile()
    )
    assert compiled.plan is not None
    assert assigned_bytes(compiled) <= found.assigned_bytes


def _scanned_loss(weights, x):
    """A layer whose dots are of bfloat16, which XLA:TPU converts as it puts them into residuals."""

    def layer(x, w):
        up, down = (k.astype(jnp.bfloat16) for k in w)
        h = jnp.dot(x.astype(jnp.bfloat16), up, preferred_element_type=jnp.float32)
        h = jnp.exp(h - h.max(-1, keepdims=True)).astype(jnp.bfloat16)
        return x + jnp.tanh(jnp.dot(h, down, preferred_element_type=jnp.float32)), None

    return jax.lax.scan(layer, x, weights)[0].sum()


def test_an_assignment_is_followed_byte_by_byte():
    """Over which operands a fusion may write is not known; what is read there must be right."""
    step = tpu_step("scan_gradient")
    module = module_from_bytes(step.captured.final)
    assert check_overlaps(PlannedModule(module, "tpu"), step.assignment) > 0
    proto = step.assignment.proto
    moved = xla_pb2.BufferAssignmentProto.FromString(proto.SerializeToString())
    for allocation in moved.buffer_allocations:
        for place in allocation.assigned:
            place.offset = 0
    wrong = dataclasses.replace(step.assignment, proto=moved)
    with pytest.raises(CheckError):
        check_overlaps(PlannedModule(module, "tpu"), wrong)


def test_what_xla_refuses_fits_with_a_plan():
    """What a loop on a TPU writes in several arrays at once is made again as it stands."""
    sizes = (8, 256, 1024), (8, 1024, 256), (2**18, 256)
    up, down, x = (jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes)
    arguments = v5e().place(((up, down), x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        jax.jit(jax.grad(_scanned_loss)).lower(*arguments).compile()
    step = olla_xla.plan(jax.grad(_scanned_loss), max_overhead=1.0, seed=0, step_limit=1000)
    compiled = step.lower(*arguments).compile()
    plan = compiled.plan
    assert compiled.planned and plan is not None and plan.loops, compiled.reason
    assert assigned_bytes(compiled) < min(15.75 * 2**30, 0.4 * plan.xla_predicted_bytes)

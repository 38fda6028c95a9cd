"""Modules from before XLA's pipeline: how many devices they are for, what arguments are."""

import gzip

import jax
import jax.numpy as jnp
import pytest
from jax.interpreters import mlir

from hlo.dumps.lowered import read_lowered
from hlo.dumps.read import read_module
from hlo.module import HloError, module_from_bytes
from hlo.text import from_hlo_text

pytestmark = pytest.mark.quick

HEAD = "HloModule m, entry_computation_layout={(f32[8,4]{1,0}, f32[8,4]{1,0})->f32[8,4]{1,0}}"
TEXT = """%s

ENTRY main%s {
  a = f32[8,4]{1,0} parameter(0)%s
  b = f32[8,4]{1,0} parameter(1)
  c = f32[8,4]{1,0} copy(a)%s
  d = f32[8,4]{1,0} copy(c)
  ROOT s = f32[8,4]{1,0} add(d, b)
}
"""
REDUCED = """%s

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] add(x, y)
}

ENTRY main_spmd {
  a = f32[8,4]{1,0} parameter(0), sharding={devices=[4,1]<=[4]}
  ROOT r = f32[8,4]{1,0} all-reduce(a), %sreplica_groups=%s, to_apply=add
}
"""


def written(tmp_path, content, name="dump.txt"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path):
    """A module that has no schedule."""
    module = read_lowered(path)
    assert module is not None
    return module


def text(head=HEAD, name="", first="", copied=""):
    return TEXT % (head, name, first, copied)


def stablehlo(module):
    with mlir.make_ir_context():
        return str(mlir.ir.Module.parse(module.stablehlo))


def test_copies_are_done_without_but_for_what_they_say_of_shardings(tmp_path):
    module = read(written(tmp_path, text()))
    assert "custom_call" not in stablehlo(module) and module.devices == 1
    tiles = ", sharding={devices=[4,1]<=[4]}"
    module = read(written(tmp_path, text(f"{HEAD}, num_partitions=4", "", tiles, tiles)))
    assert stablehlo(module).count("@Sharding") == 1 and module.partitions == 4
    assert not module.is_partitioned and not module.uses_shardy
    again = read(written(tmp_path, "\n" + text(f"{HEAD}, num_partitions=4", "", tiles, tiles)))
    assert again.partitions == 4
    root = text().replace("ROOT s = f32[8,4]{1,0} add(d, b)", "ROOT s = f32[8,4]{1,0} copy(d)")
    assert "return %arg0" in stablehlo(read(written(tmp_path, root)))


def test_shardings_that_are_of_no_use_are_dropped(tmp_path):
    """On one device, as its text says by default, and in the program of one of many."""
    tiles = ", sharding={devices=[4,1]<=[4]}"
    for head, name, devices in ((HEAD, "", 1), (f"{HEAD}, num_partitions=4", "_spmd", 4)):
        module = read(written(tmp_path, text(head, name, tiles, tiles)))
        assert module.devices == devices and "sharding" not in stablehlo(module)
        assert module.is_partitioned == bool(name)


@pytest.mark.parametrize(
    ("groups", "devices"),
    [("{{0,1},{2,5}}", 6), ("[2,4]<=[8]", 8), ("mesh['x'=2, 'y'=3] {'x'}", 6)],
)
def test_collectives_tell_of_how_many_devices_a_module_is(tmp_path, groups, devices):
    head = HEAD.replace("(f32[8,4]{1,0}, f32[8,4]{1,0})", "(f32[8,4]{1,0})")
    channel = "channel_id=1, use_global_device_ids=true, "
    module = read(written(tmp_path, REDUCED % (head, channel, groups)))
    assert (module.partitions, module.replicas) == (devices, 1) and module.is_partitioned
    if not groups.startswith("mesh"):
        module = read(written(tmp_path, REDUCED % (head, "", groups)))
        assert (module.partitions, module.replicas) == (1, devices)


def test_a_proto_does_not_say_it_and_its_shardings_do(tmp_path):
    for tiles in ("devices=[4,1]<=[4]", "mesh['x'=2, 'y'=2], [{'x', 'y'}, {}]"):
        sharding = f", sharding={{{tiles}}}"
        data = from_hlo_text(text(f"{HEAD}, num_partitions=4", "", sharding))
        module = read(written(tmp_path, data, "dump.pb"))
        assert module.partitions == 4 and module.uses_shardy == tiles.startswith("mesh")


def test_donation_and_what_xla_may_shard_are_kept(tmp_path):
    said = ", allow_spmd_sharding_propagation_to_parameters={true,false}, num_partitions=2"
    module = read(written(tmp_path, text(f"{HEAD}, buffer_donor={{ (1, {{}}) }}{said}")))
    assert module.donors == (1,) and module.propagates == {"parameters": [True, False]}
    aliased = HEAD.replace("HloModule m,", "HloModule m, input_output_alias={ {}: (1, {}) },")
    assert "input_output_alias" in stablehlo(read(written(tmp_path, text(aliased))))


def test_donated_leaves_of_a_tuple_are_counted(tmp_path):
    tuples = """HloModule m, buffer_donor={ (0, {1}), (1, {}) }

ENTRY main {
  a = (f32[4], f32[4]) parameter(0)
  b = f32[4] parameter(1)
  c = f32[4] get-tuple-element(a), index=1
  ROOT r = f32[4] add(b, c)
}
"""
    assert read(written(tmp_path, tuples)).donors == (1, 2)


def test_what_has_a_schedule_is_past_the_pipeline(tmp_path):
    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    compiled = jax.jit(lambda x: x @ x).lower(shape).compile()
    assert read_lowered(written(tmp_path, compiled.as_text())) is None


def test_files_may_be_gzipped(tmp_path):
    data = gzip.compress(text().encode())
    path = written(tmp_path, data, "dump.hlo.gz")
    plain = written(tmp_path, text())
    assert stablehlo(read(path)) == stablehlo(read(plain))
    one, two = (module_from_bytes(read_module(p)).fingerprint for p in (path, plain))
    assert one == two
    for damaged in (data[:-20], data[:12], b"\x1f\x8b\x08"):
        with pytest.raises(HloError, match="damaged gzip data") as error:
            read(written(tmp_path, damaged))
        assert "\n" not in str(error.value)


def test_what_only_its_own_process_can_partition_is_refused(tmp_path):
    called = 'custom-call(a), custom_call_target="CustomSPMDPartitioning"'
    head = f"{HEAD}, num_partitions=2"
    with pytest.raises(HloError, match="c is partitioned by code of the process that made"):
        read(written(tmp_path, text(head).replace("copy(a)", called)))
    # On one device nothing is partitioned.
    assert read(written(tmp_path, text().replace("copy(a)", called))).devices == 1

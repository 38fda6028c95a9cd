"""XLA's backend for TPUs."""

from hlo.backend.platform import HOST_MEMORY, Platform
from hlo.shapes import HOST_MEMORY_SPACE

TPU = Platform(
    name="tpu",
    jax_name="tpu",
    is_host=False,
    alignment=16384,
    pointer_bytes=4,
    table_multiple=512,
    places_as_they_come=True,
    temporaries_multiple=16384,
    memory_spaces=frozenset((0,)),  # HBM
    other_memories={1: "VMEM", 2: "SMEM", HOST_MEMORY_SPACE: HOST_MEMORY},
    all_reduces_in_place=True,
    moves_nothing=("bitcast",),
    has_fusion_rule=False,
    knows_sharing=False,
    runs_beside=True,
    has_tiles=False,
    keeps_code=True,  # not known; nothing has been run there
    keeps_results=True,  # its windows are chosen again
    allocating_call="AllocateBuffer",
    keeps_precision=True,  # XLA's simplifier takes it away where it is asked to
    emits_any_fusion=False,
    keeps_arrays=False,
    joins_calls=False,
    has_dots=False,
    pays_for_layout=False,
    has_measured_rates=False,
    has_tested_bits=False,  # no test has run there
    compile_factor=4.0,  # MaxText over 2x2: 1.4 s of 77
    least_gain=0.002,
    renames=True,
    changes_loops=True,
    trims_results=True,
    computes_again=True,  # its rematerialisation
    memory_scheduler=None,
    lists_thunks=False,
    autotunes=False,
    compiles_parts=True,
    mocks_calls={},
    refuses_what_does_not_fit=True,
    memory_limit_flag="",
    memory_part=1.0,
)

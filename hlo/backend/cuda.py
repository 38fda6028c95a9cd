"""XLA's backend for NVIDIA GPUs."""

from hlo.backend.platform import HOST_MEMORY, Platform
from hlo.shapes import HOST_MEMORY_SPACE

CUDA = Platform(
    name="cuda",
    jax_name="gpu",
    is_host=False,
    alignment=256,
    pointer_bytes=8,
    table_multiple=1,
    places_as_they_come=False,
    temporaries_multiple=1,
    memory_spaces=None,
    other_memories={HOST_MEMORY_SPACE: HOST_MEMORY},
    all_reduces_in_place=True,
    moves_nothing=("bitcast", "reshape"),
    has_fusion_rule=True,  # FusionCanShareBufferHint
    knows_sharing=True,
    runs_beside=True,
    has_tiles=False,
    keeps_code=False,  # not seen otherwise; nothing has been run there
    keeps_results=False,
    allocating_call="AllocateBuffer",
    keeps_precision=False,  # not known
    emits_any_fusion=True,
    keeps_arrays=False,
    joins_calls=False,
    has_dots=True,
    pays_for_layout=False,  # caches and kernels are made for these
    has_measured_rates=False,
    has_tested_bits=False,  # no test has run there
    compile_factor=1.0,
    least_gain=0.0,
    renames=False,
    changes_loops=False,
    trims_results=False,
    computes_again=True,  # its rematerialisation
    memory_scheduler=None,
    lists_thunks=True,
    autotunes=True,
    compiles_parts=True,
    mocks_calls={"xla_gpu_mock_custom_calls": True},
    refuses_what_does_not_fit=False,
    memory_limit_flag="xla_gpu_memory_limit_slop_factor",
    memory_part=0.75,
)

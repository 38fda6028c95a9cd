"""XLA's backend for CPUs."""

from hlo.backend.platform import Platform

CPU = Platform(
    name="cpu",
    jax_name="cpu",
    is_host=True,
    alignment=64,
    pointer_bytes=8,
    table_multiple=1,
    places_as_they_come=False,
    temporaries_multiple=1,
    memory_spaces=None,
    other_memories={},
    all_reduces_in_place=False,  # a rule of the backend's own
    moves_nothing=("bitcast",),
    has_fusion_rule=False,
    knows_sharing=True,
    runs_beside=False,
    has_tiles=True,
    keeps_code=True,
    keeps_results=True,
    allocating_call="",
    keeps_precision=False,
    emits_any_fusion=True,
    keeps_arrays=True,
    joins_calls=True,  # calls with xla_cpu_small_call
    has_dots=True,
    pays_for_layout=True,
    has_measured_rates=True,
    has_tested_bits=True,
    compile_factor=1.0,
    least_gain=0.0,
    renames=False,
    changes_loops=False,
    trims_results=False,
    computes_again=False,
    memory_scheduler={"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"},
    lists_thunks=False,  # it does, for one machine's code
    autotunes=False,
    compiles_parts=False,
    mocks_calls={},
    refuses_what_does_not_fit=False,
    memory_limit_flag="",
    memory_part=1.0,
)

"""Places by the OLLA paper's integer programs, beside the search that `olla_xla.place` does.

- `place_by_programs(problem)`: offsets by the location program, (6) to (8) and (15).
- `joint.joint_program(graph)`: order and locations at once, (9).
- `arenas.arenas(module, ...)`: both, of a planned module.
"""

from benchmarks.place_ilp.located import FORMS, Programs
from benchmarks.place_ilp.placer import place_by_programs

__all__ = ["FORMS", "Programs", "place_by_programs"]

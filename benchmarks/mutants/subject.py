"""One step under test: XLA's executable and the planned one; each mutant made, judged and run."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.mutants.cases import Case
from benchmarks.mutants.kinds import KINDS, mutated
from benchmarks.mutants.overlap import overlapped
from benchmarks.mutants.programs import SEEN
from benchmarks.mutants.text import read_back
from benchmarks.rewritten import compile_rewritten
from hlo.cpu_executable import CpuExecutable
from hlo.module import HloError, module_from_bytes
from olla_xla import planner
from olla_xla.check.executable import check_executable, check_rewrite, differing, results_digest
from olla_xla.compile import objection
from olla_xla.compile.accounting import assignment_proto, final_module
from olla_xla.compile.jax_private import loaded_again
from olla_xla.errors import CheckError, OllaError
from olla_xla.tools.capture import Compiled, capture

Mutant = tuple[str, int, str, bytes]
"""(kind, number of the try, what was done, module or executable)."""

_TRIES = 12  # for a fault that was not seeded before
_INPUTS = (1, 2)


class Subject:
    """A step, its plan and its expected outputs.

    Args:
      case: the step. planned: a planned module made before for the same step, and its plan's
        kernels; or None.

    Attributes:
      planned: the module as it is handed back to XLA. kernels: `Plan.kernels` as JSON.
    """

    _kinds = KINDS

    def __init__(self, case: Case, planned: tuple[bytes, str] | None = None) -> None:
        step, shapes, jit_options = case.build()
        self._lowered = jax.jit(step, **jit_options).lower(*shapes)
        captured = capture(self._lowered)
        self._scheduled = captured.module
        self.planned, self.kernels = planned or self._plan(captured, case)
        expected: dict[str, list[int]] = json.loads(self.kernels)
        self._kernels = {name: tuple(pattern) for name, pattern in expected.items()}
        # As for the plan itself: loops whose residuals are recomputed are numbered element by
        # element.
        digests = (results_digest(m, "cpu") for m in (captured.module, self.planned))
        self._loops = len(set(digests)) > 1
        self._case = objection.Case(
            target="cpu",
            results=results_digest(captured.module, "cpu", loops=self._loops),
            donated=module_from_bytes(captured.module).donated,
        )
        self._inputs = [arguments(shapes, seed) for seed in _INPUTS]
        own = compile_rewritten(self._lowered, lambda module: module)
        self._expected = self._run(own)
        self._own = own
        self._own_kernels = check_executable(
            final_module(own), "cpu", assignment=assignment_proto(own, "cpu")
        )
        self._compiled = compile_rewritten(self._lowered, lambda _: self.planned)
        self._executable = _serialized(self._compiled)

    def _plan(self, captured: Compiled, case: Case) -> tuple[bytes, str]:
        plan = planner.plan_module(
            captured.module, case.options, target="cpu", xla_bytes=captured.assigned_bytes
        )
        return planner.apply_plan(captured.module, plan), json.dumps(dict(plan.kernels))

    def unmutated(self) -> Iterator[dict[str, Any]]:
        """XLA's executable, the planned one and that read from its text: verdicts and outputs."""
        again = read_back(self.planned)
        for name, module, compiled in (
            ("xla", self._scheduled, self._own),
            ("planned", self.planned, self._compiled),
            ("read back", again, compile_rewritten(self._lowered, lambda _: again)),
        ):
            yield {
                "kind": name,
                "planned": self._handed_back(module),
                "executable": self._judge(compiled),
                "outcome": "same" if self._run(compiled) == self._expected else "differs",
            }

    def mutants(self, seed: str, kinds: tuple[str, ...]) -> Iterator[Mutant]:
        """Mutants without end, each kind in its share, none twice; ends where all are used up."""
        seen: set[str] = set()
        numbers = dict.fromkeys(kinds, 0)
        rng = random.Random(seed)
        shares = {kind: self._kinds[kind].share for kind in kinds}
        turns = [(rng.random() / shares[kind], kind) for kind in kinds]
        heapq.heapify(turns)
        while turns:
            turn, kind = heapq.heappop(turns)
            mutant = self._next(seed, kind, numbers, seen)
            if mutant is not None:
                yield mutant
                heapq.heappush(turns, (turn + 1 / shares[kind], kind))

    def _next(self, seed: str, kind: str, numbers: dict[str, int], seen: set[str]) -> Mutant | None:
        for _ in range(_TRIES):
            numbers[kind] += 1
            number = numbers[kind]
            if self._kinds[kind].seed is None:
                made = self._in_executable(kind, f"{seed}/{number}")
            else:
                made = mutated(self.planned, kind, f"{seed}/{number}")
            if made is None:
                return None
            text, data = made
            if self._is_fault(kind, data) and f"{kind}: {text}" not in seen:
                seen.add(f"{kind}: {text}")
                return kind, number, text, data
        return None

    def _is_fault(self, kind: str, data: bytes) -> bool:
        """Whether it is one to the judge."""
        del kind, data  # a plan's knows the module before
        return True

    def _in_executable(self, kind: str, seed: str) -> tuple[str, bytes] | None:
        if not self._executable:
            return None
        try:
            return self._fault(kind, seed)
        except (HloError, OllaError):
            self._executable = b""
            return None

    def _fault(self, kind: str, seed: str) -> tuple[str, bytes] | None:
        del kind  # there is one
        return overlapped(self._executable, seed)

    def judged(self, mutant: Mutant) -> Iterator[dict[str, Any]]:
        """Compiles, judges and runs a mutant; says after each stage what is known.

        Yields:
          {"stage": "made" | "compiled" | "ran", ...}, the last with the outcome.
        """
        kind, _, _, data = mutant
        is_module = self._kinds[kind].seed is not None
        planned = self._handed_back(data) if is_module else self._judge(self._compiled, data)
        yield {"stage": "made", "planned": planned}
        try:
            if is_module:
                compiled = compile_rewritten(self._lowered, lambda _: data)
            else:
                compiled = loaded_again(self._compiled, data)
        except (jax.errors.JaxRuntimeError, OllaError, ValueError, RuntimeError) as error:
            yield {"stage": "ran", "outcome": "refused", "error": _line(error)}
            return
        yield {"stage": "compiled", "executable": self._judge(compiled) if is_module else ""}
        try:
            same = self._run(compiled) == self._expected
        except (jax.errors.JaxRuntimeError, ValueError, RuntimeError) as error:
            yield {"stage": "ran", "outcome": "failed", "error": _line(error)}
            return
        yield {"stage": "ran", "outcome": "same" if same else "differs"}

    def _handed_back(self, module: bytes) -> str:
        """What the referee says before XLA gets a module: of it, and of it as a choice (remat)."""
        case = dataclasses.replace(self._case, scheduled=self._scheduled, planned=module)
        try:
            case.check()
            check_rewrite(self._scheduled, module, "cpu", loops=self._loops)
        except CheckError as error:
            return _line(error)
        return ""

    def _judge(self, compiled: jax.stages.Compiled, executable: bytes = b"") -> str:
        """What the referee says of an executable, and of the same with other bytes."""
        if executable:
            assignment = CpuExecutable(executable).assignment.SerializeToString()
        else:
            assignment = assignment_proto(compiled, "cpu")
        final = final_module(compiled)
        case = dataclasses.replace(self._case, final=final, assignment=assignment)
        try:
            kernels = case.check().kernels
        except CheckError as error:
            return _line(error)
        other = [
            name
            for name in differing(kernels, self._kernels)
            if name not in self._own_kernels or kernels[name].found != self._own_kernels[name].found
        ]
        return f"{other[0]} has other memory than in XLA's own order" if other else ""

    def _run(self, compiled: jax.stages.Compiled) -> list[list[bytes]]:
        """Outputs for all inputs, and for the first again, as memory left behind may matter."""
        return [outputs(compiled, given) for given in (*self._inputs, self._inputs[0])]

    def take(self, seed: str, kinds: tuple[str, ...], skip: int, count: int) -> Iterator[Mutant]:
        """Mutants number `skip` to `count` of those of a seed."""
        return itertools.islice(self.mutants(seed, kinds), skip, count)


def _serialized(compiled: jax.stages.Compiled) -> bytes:
    """The executable's bytes; b"" where JAX cannot serialize it."""
    executable = compiled.runtime_executable()
    try:
        return b"" if executable is None else executable.serialize()
    except jax.errors.JaxRuntimeError:
        return b""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def arguments(shapes: Any, seed: int) -> Any:
    """Small positive floats (valid second moments too), integers below ten, all of one seed."""
    generator = np.random.default_rng(seed)

    def array(a: Any) -> Any:
        if jnp.issubdtype(a.dtype, jnp.bool_):
            return jnp.asarray(generator.random(a.shape) < 0.5)
        if jnp.issubdtype(a.dtype, jnp.integer):
            return jnp.asarray(generator.integers(0, 10, a.shape).astype(a.dtype))
        return jnp.asarray(generator.uniform(0.001, 0.2, a.shape).astype(a.dtype))

    return jax.tree.map(array, shapes)


def outputs(compiled: jax.stages.Compiled, given: Any) -> list[bytes]:
    """Runs an executable on copies of the arguments.

    Returns:
      The bytes of each output, of each argument afterwards that was not donated, and what host
      callbacks have seen. That in no order: JAX keeps none, and XLA's CPU runtime starts what is
      ready, whatever the schedule says. Where a result depends on it, the outputs show it.
    """
    copies = jax.tree.map(lambda a: jnp.array(a, copy=True), given)
    SEEN.clear()
    results = jax.block_until_ready(compiled(*copies))
    jax.effects_barrier()
    donated = jax.tree.leaves(compiled.args_info)
    kept = [
        leaf
        for leaf, info in zip(jax.tree.leaves((copies, {})), donated, strict=True)
        if not info.donated
    ]
    arrays = [*jax.tree.leaves(results), *kept]
    return [*(np.asarray(a).tobytes() for a in arrays), "\n".join(sorted(SEEN)).encode()]

"""How much work stands between the start of each transfer and its done, in predicted seconds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from hlo.module import Computation, Module
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.cost.work import run_work, trips


def hidden_seconds(
    module: Module, order: Mapping[str, Sequence[str]], cost: CostModel
) -> dict[str, float]:
    """Predicted seconds of the work between each asynchronous start and its done.

    The sum is over one run of a module. Other transfers use the same link and hide nothing: only
    their memory traffic counts.

    Args:
      module: the module. order: computation name -> instruction names in execution order; names
        that the module does not have are passed over.
      cost: prices operators.

    Returns:
      Start's name -> predicted seconds.
    """
    hidden: dict[str, float] = {}

    def visit(computation: Computation, times: int) -> None:
        for name, seconds in _hidden(computation, order.get(computation.name, ()), cost).items():
            hidden[name] = hidden.get(name, 0.0) + times * seconds
        for i in computation.instructions:
            for called in i.called_control:
                visit(called, times * trips(i))

    visit(module.entry, 1)
    return hidden


def _hidden(computation: Computation, names: Sequence[str], cost: CostModel) -> dict[str, float]:
    """The same of one run of a computation."""
    own = {i.name: i for i in computation.instructions}
    sequence = [own[name] for name in names if name in own]
    dones = [i for i in sequence if i.opcode.endswith("-done")]
    if not dones:
        return {}
    found = run_work(computation, cost.work)
    work = {i: dataclasses.replace(w, exchanged=0) for i, w in found.items()}
    until = [0.0, *itertools.accumulate(cost.device.seconds(work[i]) for i in sequence)]
    step = {i: k for k, i in enumerate(sequence)}
    return {
        start.name: until[step[done]] - until[step[start] + 1]
        for done in dones
        if (start := done.operands[0]) in step
    }

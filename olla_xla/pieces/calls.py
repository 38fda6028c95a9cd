"""Equations that call jaxprs: which operand or result each input or output of these is."""

import dataclasses
from typing import Any

import jax
from jax.extend import core

from olla_xla.segments.equations import inexact, replaced, run_equation, scan_counts, zeros_but

CHECKPOINTS = ("checkpoint", "remat", "remat2")
"""What JAX calls `jax.checkpoint`, by version."""
CALLS = frozenset((*CHECKPOINTS, "cond", "custom_jvp_call", "custom_vjp_call", "scan", "while"))
"""Equations that call jaxprs; they are cut if everything in these jaxprs can be."""


@dataclasses.dataclass(frozen=True)
class Called:
    """A jaxpr that an equation (scan, while, cond, ...) calls, and how their values correspond.

    Attributes:
      jaxpr: what is called. is_rule: whether it is a custom derivative's rule.
      ins, outs: for each input and output of the jaxpr, (number of the equation's operand or result
        that it is, how many more leading dimensions that has: 1 for what a loop stacks), or None. A
        rule's inputs may be cotangents of results, which are numbered after the operands.
      carried: pairs of an output and an input of the jaxpr, the same value one iteration later.
      gradients: for each output of a rule, the operand whose gradient it is: a partial sum if each
        piece reads that operand whole.
    """

    jaxpr: Any
    ins: tuple[tuple[int, int] | None, ...]
    outs: tuple[tuple[int, int] | None, ...]
    carried: tuple[tuple[int, int], ...] = ()
    gradients: tuple[int, ...] = ()
    is_rule: bool = False


def called_by(e: Any, with_rule: bool) -> list[Called]:
    """Returns as Called the jaxprs that an equation of a primitive in `CALLS` (scan, cond, ...)
    calls; [] where it cannot run in pieces: it has effects or a rule that cannot be traced.
    `with_rule`: whether a custom derivative's rule is included. A rule may call its own function
    again, so rules inside rules are followed to some depth only.
    """
    if e.effects:
        return []
    if not with_rule and "call_jaxpr" in e.params:
        return [Called(e.params["call_jaxpr"], _same(len(e.invars)), _same(len(e.outvars)))]
    return {
        **dict.fromkeys(CHECKPOINTS, _checkpoint),
        "cond": _cond,
        "custom_jvp_call": _custom_jvp,
        "custom_vjp_call": _custom_vjp,
        "scan": _scan,
        "while": _while,
    }[e.primitive.name](e)


def _same(count: int, first: int = 0) -> tuple[tuple[int, int], ...]:
    return tuple((first + i, 0) for i in range(count))


def _checkpoint(e: Any) -> list[Called]:
    return [Called(e.params["jaxpr"], _same(len(e.invars)), _same(len(e.outvars)))]


def _cond(e: Any) -> list[Called]:
    ins, outs = _same(len(e.invars) - 1, 1), _same(len(e.outvars))
    return [Called(branch, ins, outs) for branch in e.params["branches"]]


def _scan(e: Any) -> list[Called]:
    p = e.params
    constants, carries = scan_counts(e)
    fixed = constants + carries
    ins = [(i, int(i >= fixed)) for i in range(len(e.invars))]
    outs = [(k, int(k >= carries)) for k in range(len(e.outvars))]
    carried = tuple((k, constants + k) for k in range(carries))
    return [Called(p["jaxpr"], tuple(ins), tuple(outs), carried)]


def _while(e: Any) -> list[Called]:
    """Returns the body and the predicate of a while equation, as Called. If the predicate is an
    array (under vmap), the body keeps the state of finished samples.
    """
    p = e.params
    of_cond, fixed = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    carries = len(e.outvars)
    goes_on, body = (core.jaxpr_as_fun(p[k]) for k in ("cond_jaxpr", "body_jaxpr"))

    def step(*values: Any) -> list[Any]:
        state = values[fixed:]
        made = body(*values[of_cond:])
        if not p["cond_jaxpr"].out_avals[0].shape:
            return made
        (more,) = goes_on(*values[:of_cond], *state)
        # Samples that are finished keep their state. JAX selects it when it lowers the loop.
        return [
            jax.lax.select(jax.lax.broadcast_in_dim(more, x.shape, range(more.ndim)), x, y)
            for x, y in zip(made, state, strict=True)
        ]

    traced = jax.make_jaxpr(step)(*_shapes(e.invars))
    carried = tuple((k, fixed + k) for k in range(carries))
    state = _same(carries, fixed)
    return [
        Called(traced, _same(len(e.invars)), _same(carries), carried),
        Called(p["cond_jaxpr"], (*_same(of_cond), *state), (None,)),
    ]


def _shapes(atoms: Any) -> list[Any]:
    return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in atoms]


def _traced(rule: Any, values: Any, moving: Any) -> Any:
    """Traces a derivative rule for these values and (co)tangents to a jaxpr; None if it raises."""
    try:
        return jax.make_jaxpr(rule)(_shapes(values), _shapes(moving))
    except Exception:  # whatever their code raises; they see it where they differentiate
        return None


def _custom_jvp(e: Any) -> list[Called]:
    """Returns the function and rule of a `custom_jvp` call; [] if the rule cannot be traced."""
    moving, results = inexact(e.invars), inexact(e.outvars)

    def rule(values: Any, tangents: Any) -> Any:
        whole = zeros_but(values, moving, tangents)
        out, moved = jax.jvp(lambda *given: run_equation(e, given), list(values), whole)
        return [*out, *(moved[k] for k in results)]

    traced = _traced(rule, e.invars, [e.invars[i] for i in moving])
    if traced is None:
        return []
    ins, outs = _same(len(e.invars)), _same(len(e.outvars))
    with_tangents = (*ins, *((i, 0) for i in moving)), (*outs, *((k, 0) for k in results))
    return [Called(e.params["call_jaxpr"], ins, outs), Called(traced, *with_tangents, is_rule=True)]


def _custom_vjp(e: Any) -> list[Called]:
    """Returns the two programs that a `custom_vjp` call may run: its function and its derivative.
    That runs forward and backward rules, from arguments and cotangents of the results to cotangents
    of the arguments that have gradients. [] if it cannot be traced.
    """
    moving, results = inexact(e.invars), inexact(e.outvars)

    def rule(values: Any, cotangents: Any) -> Any:
        def smooth(*given: Any) -> Any:
            out = run_equation(e, replaced(values, moving, given))
            return [out[k] for k in results]

        _, pull = jax.vjp(smooth, *(values[i] for i in moving))
        return pull(list(cotangents))

    traced = _traced(rule, e.invars, [e.outvars[k] for k in results])
    if traced is None:
        return []
    ins, outs = _same(len(e.invars)), _same(len(e.outvars))
    cotangents = tuple((len(e.invars) + k, 0) for k in results)
    function = Called(e.params["call_jaxpr"], ins, outs)
    nothing = (None,) * len(moving)
    rules = Called(traced, (*ins, *cotangents), nothing, (), tuple(moving), is_rule=True)
    return [function, rules]

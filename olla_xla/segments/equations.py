"""Equations of jaxprs: their operands, sizes, called jaxprs and effects, and how they are run."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core, source_info_util


def is_variable(atom: Any) -> bool:
    """Whether an operand of an equation is a variable, not a literal."""
    return not isinstance(atom, core.Literal)


def operands(e: Any) -> Iterable[Any]:
    """Returns the variables that an equation reads, each once, in the order of its operands."""
    return dict.fromkeys(filter(is_variable, e.invars))


def values_of(atoms: Iterable[Any], known: Mapping[Any, Any]) -> list[Any]:
    """Returns the values of atoms: of variables from `known`, of literals their own."""
    return [known[v] if is_variable(v) else v.val for v in atoms]


def renamed(atoms: Iterable[Any], names: Mapping[Any, Any]) -> list[Any]:
    """Returns `atoms` with each variable that is a key of `names` replaced by its value there."""
    return [names.get(v, v) if is_variable(v) else v for v in atoms]


def bytes_of(x: Any) -> int:
    """Returns the bytes of a variable, literal or abstract value; 0 if it is not an array."""
    aval = getattr(x, "aval", x)
    return getattr(aval, "size", 0) * getattr(getattr(aval, "dtype", None), "itemsize", 0)


def inner_jaxprs(e: Any) -> list[Any]:
    """Returns the open jaxprs in an equation's parameters, as the bodies of scan, while and jit."""
    return [getattr(jaxpr, "jaxpr", jaxpr) for jaxpr in core.jaxprs_in_params(e.params)]


def has_effect(e: Any) -> bool:
    """Whether an equation has a side effect, other than to name a mapped axis."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in e.effects)


def scan_counts(e: Any) -> tuple[int, int]:
    """Returns (number of constants, number of carried values) of a scan equation."""
    p = e.params
    if "num_consts" in p:
        return p["num_consts"], p["num_carry"]
    constants, carries, _ = p["ft_in"].update(list(range(len(e.invars)))).unpack()
    return len(list(constants)), len(list(carries))


def user_line(e: Any) -> str | None:
    """Returns the "file:line" in the user's code that made an equation; None if it is not known."""
    traceback = e.source_info.traceback
    for frame in () if traceback is None else traceback.frames:
        path = frame.file_name.replace("\\", "/")
        if not any(part in path for part in _LIBRARIES):
            return f"{path.rsplit('/', 1)[-1]}:{frame.line_num}"
    return None


_LIBRARIES = ("/jax/", "/jaxlib/", "/flax/", "/optax/", "<frozen", "/olla_xla/")
"""Parts of paths of files that are not the user's."""


@contextlib.contextmanager
def as_written(e: Any) -> Iterator[None]:
    """A context in which traced operations get an equation's source line, scope and settings."""
    stack = source_info_util.current_name_stack() + e.source_info.name_stack
    with source_info_util.user_context(e.source_info.traceback, name_stack=stack), e.ctx.manager:
        yield


def run_equation(
    e: Any, values: Sequence[Any], params: Mapping[str, Any] | None = None
) -> list[Any]:
    """Runs an equation on operand values; returns its results. `params` stand in for its own."""
    made = e.primitive.bind(*values, **e.primitive.get_bind_params(params or e.params))
    return list(made) if e.primitive.multiple_results else [made]


def function_of(
    equations: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]
) -> Callable[..., list[Any]]:
    """Makes a function that runs equations; it maps `inputs`' values to a list of `outputs`'."""
    effects = frozenset().union(*(e.effects for e in equations))
    names = core.DebugInfo("checkpoint", "segment", ("",) * len(inputs), ("",) * len(outputs))
    jaxpr = core.Jaxpr((), tuple(inputs), tuple(outputs), list(equations), effects, names)
    closed: Any = core.ClosedJaxpr(jaxpr, ())  # pyright: ignore[reportPrivateImportUsage]
    return core.jaxpr_as_fun(closed)


def needed_for(outputs: Iterable[Any], equations: Sequence[Any]) -> list[Any]:
    """Returns the equations, in order, that have side effects or that these or `outputs` need."""
    wanted, needed = set(filter(is_variable, outputs)), []
    for e in reversed(equations):
        if has_effect(e) or not wanted.isdisjoint(e.outvars):
            wanted.update(operands(e))
            needed.append(e)
    return needed[::-1]


def has_gradient(x: Any) -> bool:
    """Whether an array, or a variable that stands for one, has a floating-point or complex type."""
    dtype: Any = getattr(getattr(x, "aval", x), "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


def inexact(values: Iterable[Any]) -> list[int]:
    """Returns the indices of the arrays or variables that have a floating-point or complex type."""
    return [i for i, x in enumerate(values) if has_gradient(x)]


def replaced(values: Sequence[Any], places: Sequence[int], new: Iterable[Any]) -> list[Any]:
    """Returns a copy of `values` that has `new` at the indices `places`, in the same order."""
    whole = list(values)
    for i, x in zip(places, new, strict=True):
        whole[i] = x
    return whole


def zeros_but(values: Iterable[Any], places: Sequence[int], moved: Iterable[Any]) -> list[Any]:
    """Returns (co)tangents of `values`: `moved` at the indices `places`, elsewhere float0 zeros."""
    zeros = [np.zeros(jnp.shape(x), jax.dtypes.float0) for x in values]
    return replaced(zeros, places, moved)

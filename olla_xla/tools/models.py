"""Models by name: the zoo of a checkout, and any function of the user's.

A model is a function called with `batch_size=`, and with `optimizer=` if it takes that. It returns
`(step, example_args)` or `(step, example_args, jit_kwargs)`: a plain function to be jitted, its
arguments as arrays or `jax.ShapeDtypeStruct`s, and the keyword arguments of `jax.jit` (donation,
static arguments).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from olla_xla.errors import InputError, OllaError
from olla_xla.targets.target import Target
from olla_xla.version import to_install

_ZOO = "examples.zoo"
"""A module that a checkout has and an installation has not, so it is imported by name."""


@dataclasses.dataclass(frozen=True)
class BuiltModel:
    """A train step ready to be jitted.

    Attributes:
      name: as given on the command line. batch_size, optimizer: as given.
      step: a plain function. arguments: its arguments, arrays or shapes.
      jit_options: keyword arguments of `jax.jit`.
      make: the model's function.
    """

    name: str
    batch_size: int
    optimizer: str
    step: Callable[..., Any]
    arguments: tuple[Any, ...]
    jit_options: Mapping[str, Any]
    make: Callable[..., Any] = dataclasses.field(repr=False)

    def titled(self, where: str) -> str:
        """Returns the title of its tables: model, batch size, optimizer, and the device `where`."""
        return f"{self.name}, batch {self.batch_size}, {self.optimizer}, {where}"

    def arrays(self, seed: int = 0) -> tuple[Any, ...]:
        """Makes real arguments for the step, which depend on `seed` alone.
        Models with `init`, as the zoo's, initialise their state. For others, arrays they gave are
        copied (a donated one can be used once), and shapes filled: small floats, keys, else zeros.
        """
        initialise: Any = getattr(self.make, "init", None)
        if initialise is not None:
            return tuple(initialise(self.batch_size, self.optimizer, seed=seed))
        import jax
        import jax.numpy as jnp
        import numpy as np

        random = np.random.default_rng(seed)

        def fill(leaf: Any) -> Any:
            if not isinstance(leaf, jax.ShapeDtypeStruct):
                return jnp.array(leaf, copy=True)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jax.random.split(jax.random.key(seed), leaf.shape)
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                values = random.standard_normal(leaf.shape, np.float32) * 0.02
                return jnp.asarray(values, leaf.dtype)
            return jnp.zeros(leaf.shape, leaf.dtype)

        return tuple(jax.tree.map(fill, self.arguments))


def zoo() -> Any:
    """Imports the zoo, the example models of a checkout: `MODELS` has name -> path of all, and
    `ZOO` the names that benchmarks use. Adds the working directory to the import path. Raises
    InputError where the zoo is not to be found.
    """
    _look_here()
    try:
        return importlib.import_module(_ZOO)
    except ModuleNotFoundError as error:
        raise InputError(
            "example models are in examples/zoo of a checkout, but this is an installed package; "
            "name a model of your own as package.module:function"
        ) from error


def _look_here() -> None:
    """Adds the working directory at the end of the import path, unless it is in it."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def build(name: str, *, batch_size: int, optimizer: str) -> BuiltModel:
    """Builds a model's train step with its arguments, by calling the model's function.
    Raises InputError if there is none, it cannot be imported, fails or returns something else.

    Args:
      name: of an example model (the zoo), or "package.module:function".
      batch_size, optimizer: what the model's function is called with.
    """
    make = load(name)
    with _failures(f"model {name} with batch_size={batch_size}, optimizer={optimizer}"):
        options = {"optimizer": optimizer} if _takes_optimizer(make) else {}
        built = make(batch_size=batch_size, **options)
    try:
        step, arguments, *rest = built
        (jit_options,) = rest or ({},)
        arguments, jit_options = tuple(arguments), dict(jit_options)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"model {name} must return (step, example_args) or (step, example_args, jit_kwargs), "
            f"not {type(built).__name__}"
        ) from error
    if not callable(step):
        raise InputError(f"the step of model {name} is a {type(step).__name__}, not a function")
    return BuiltModel(name, batch_size, optimizer, step, arguments, jit_options, make)


def _takes_optimizer(make: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # a callable that is not written in Python
        return True
    return any(p.name == "optimizer" or p.kind is p.VAR_KEYWORD for p in parameters)


def tracing(name: str) -> contextlib.AbstractContextManager[None]:
    """Context manager that turns errors of a user's step, while JAX traces it, into InputErrors.
    OllaErrors are not changed.
    """
    return _failures(f"jax.jit cannot trace the step of model {name}")


@contextlib.contextmanager
def _failures(what: str) -> Iterator[None]:
    try:
        yield
    except OllaError:
        raise
    except Exception as error:  # the model is the user's code: anything may come out of it
        reason = next((line for line in str(error).splitlines() if line.strip()), "")
        raise InputError(f"{what}: {type(error).__name__}: {reason}".rstrip(": ")) from error


def load(name: str) -> Callable[..., Any]:
    """Imports the model function of a zoo name or "package.module:function"; else InputError.
    Adds the working directory to the import path.
    """
    path = name
    if ":" not in name:
        known = zoo().MODELS
        if name not in known:
            raise InputError(
                f"unknown model {name!r}; choose one of {', '.join(sorted(known))}, or give "
                "package.module:function"
            )
        path = known[name]
    _look_here()
    module_name, function_name = path.split(":", 1)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name in ("flax", "optax"):
            raise InputError(
                f"model {name} needs {error.name}; {to_install('examples')}"
            ) from error
        raise InputError(f"cannot import model {name}: {error}") from error
    except Exception as error:  # whatever the user's module raises while it is imported
        reason = next(iter(str(error).splitlines()), "")
        raise InputError(f"cannot import model {name}: {type(error).__name__}: {reason}") from error
    make = getattr(module, function_name, None)
    if not callable(make):
        raise InputError(f"{module_name} has no function {function_name}; check --model={name}")
    return make


def steps(name: str, optimizer: str, target: Target) -> Callable[[int], tuple[Any, Any]]:
    """Returns a function: batch size -> (a model's jitted step, its arguments on the target).
    Both raise InputError if the model cannot be built or traced.
    """
    one = build(name, batch_size=1, optimizer=optimizer)
    axes = batch_axes(one, build(name, batch_size=2, optimizer=optimizer))

    def make(batch: int) -> tuple[Any, Any]:
        model = build(name, batch_size=batch, optimizer=optimizer)
        arguments = target.place(model.arguments, axes)
        step = jax.jit(model.step, **model.jit_options)
        with tracing(name):
            step.trace(*arguments)
        return step, arguments

    return make


def batch_axes(model: BuiltModel, other: BuiltModel) -> Any:
    """Returns, for each argument array, the axis that depends on the batch size; -1 if none does.
    It compares a model built for two sizes. Raises InputError if no argument depends on it.
    """

    def axis(a: Any, b: Any) -> int:
        pairs = zip(getattr(a, "shape", ()), getattr(b, "shape", ()), strict=True)
        return next((k for k, (x, y) in enumerate(pairs) if x != y), -1)

    axes = jax.tree.map(axis, model.arguments, other.arguments)
    if all(k < 0 for k in jax.tree.leaves(axes)):
        raise InputError(f"no argument of model {model.name} depends on batch_size")
    return axes

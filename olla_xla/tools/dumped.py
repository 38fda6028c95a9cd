"""A module that was dumped before XLA's pipeline, in place of one of JAX's lowered stages.

`Compiles` needs little of a stage: a StableHLO module, and `compile`. So a dump is compiled,
captured and planned as a step is, without its function; the executables are never run. Private
parts of JAX that are used: its compile options, a client's list of devices, and the client itself.
Where one is missing, InputError says so.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from jax.interpreters import mlir

from hlo.backend import platform
from hlo.dumps.lowered import LoweredModule
from olla_xla.compile.outcomes import Outcome
from olla_xla.compile.planned import compile_given, compile_planned
from olla_xla.errors import InputError, OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.targets.target import Target
from olla_xla.tools.capture import Compiled, capture

if TYPE_CHECKING:
    from jax.extend.mlir import ir

_NOTES = "mhlo.frontend_attributes"
_DONOR = "jax.buffer_donor"
_LAYOUT = "mhlo.layout_mode"
_DENSE = re.compile(r"dense<(\[[\d, ]*\]|\d*)>")
_LONGEST = 300
"""Characters of a reason at most: some have a whole operation in them."""
_TILINGS = "result_tilings"
_SHARDINGS = ("mhlo.sharding", "sdy.sharding")


class DumpedExecutable:
    """Stands for `jax.stages.Compiled` where an executable was compiled from a dumped module.

    Args:
      executable: XLA's own. device: one of its devices.
    """

    def __init__(self, executable: Any, device: Any) -> None:
        self._found, self.device = executable, device

    def runtime_executable(self) -> Any:
        """Returns XLA's own executable, as `jax.stages.Compiled.runtime_executable` does."""
        return self._found

    def memory_analysis(self) -> Any:
        """Returns XLA's memory statistics, as `jax.stages.Compiled.memory_analysis` does."""
        return self._found.get_compiled_memory_stats()


class _DumpedLowered:
    """Stands for `jax.stages.Lowered` where a dumped module is only compiled, and never run."""

    def __init__(self, module: LoweredModule, devices: Sequence[Any], mocked: dict[str, Any]):
        from jax.extend.mlir import ir

        self._dump, self._devices, self._mocked = module, tuple(devices), mocked
        with mlir.make_ir_context():
            try:
                self._module = ir.Module.parse(module.stablehlo)
            except Exception as error:
                raise InputError(f"{module.name}: JAX cannot read it: {_line(error)}") from error
            self._arguments = _marked(self._module, module.donors)
            _drop_tilings(self._module)
        self._compiled: dict[str, DumpedExecutable] = {}
        # The attribute in which JAX's own stage has its devices (jax_private.devices_of).
        self._lowering = types.SimpleNamespace(_device_list=self._devices)

    def compiler_ir(self, dialect: str | None = None) -> ir.Module:
        """Returns the StableHLO module, as MLIR, as `jax.stages.Lowered.compiler_ir` does."""
        del dialect
        return self._module

    def as_text(self) -> str:
        """Returns the StableHLO module as text."""
        return str(self._module)

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> DumpedExecutable:
        """Compiles the module, once for the same options and frontend attributes, as JAX does.
        Raises jax.errors.JaxRuntimeError if XLA cannot compile it, InputError if this JAX cannot.
        """
        options = {**self._mocked, **(compiler_options or {})}
        attributes = self._module.operation.attributes
        notes = str(attributes[_NOTES]) if _NOTES in attributes else ""
        key = repr((sorted(options.items()), notes))
        if key not in self._compiled:
            self._compiled[key] = self._made(options)
        return self._compiled[key]

    def _made(self, options: dict[str, Any]) -> DumpedExecutable:
        client = self._devices[0].client
        try:
            devices = importlib.import_module("jaxlib._jax").DeviceList(self._devices)
            settings = self._settings(options)
            make = _compile_of(client)
        except (ImportError, AttributeError, TypeError) as error:
            raise InputError(
                f"JAX {jax.__version__} cannot compile a dumped module ({_line(error)}); give "
                "--nocompile to plan it in its own order"
            ) from error
        with self._module.context:
            made = make(self._module, executable_devices=devices, compile_options=settings)
        return DumpedExecutable(made, self._devices[0])

    def _settings(self, options: dict[str, Any]) -> Any:
        """Makes XLA's compile options as JAX does, for the module's devices and shardings."""
        dump = self._dump
        compiler = importlib.import_module("jax._src.compiler")
        settings = compiler.get_compile_options(
            dump.replicas,
            dump.partitions,
            device_assignment=np.array(self._devices).reshape(dump.replicas, dump.partitions),
            env_options_overrides=options,
            backend=self._devices[0].client,
        )
        build = settings.executable_build_options
        build.use_spmd_partitioning = not dump.is_partitioned
        build.use_shardy_partitioner = dump.uses_shardy
        if dump.partitions > 1 and not dump.is_partitioned:
            free = dump.propagates
            bare = [not any(name in said for name in _SHARDINGS) for said in self._arguments]
            # Where no sharding is given XLA may choose it, as in JAX.
            build.allow_spmd_sharding_propagation_to_parameters = free.get("parameters", bare)
            build.allow_spmd_sharding_propagation_to_output = free.get("output", [True])
        return settings


class DumpedStage:
    """A dumped module, to be compiled by XLA's pipeline with XLA's own schedule or a planned one.
    Raises InputError if JAX cannot read the module, the target has another number of devices, or
    the module is partitioned already and the target is a CPU.

    Args:
      module: the dump. target: the devices, as many as the module is for.
    """

    def __init__(self, module: LoweredModule, target: Target) -> None:
        devices = target.devices or (target.device or jax.local_devices()[0],)
        if len(devices) != module.devices:
            raise InputError(
                f"{module.name} is for {module.devices} devices, but {target.name} has "
                f"{len(devices)} here; set --target or the number of devices"
            )
        backend = platform(target.platform)
        if module.is_partitioned and module.partitions > 1 and not backend.compiles_parts:
            raise InputError(
                f"{module.name} is already partitioned, and XLA does not compile that for a CPU; "
                "dump it before XLA's partitioner, or choose a GPU with --target"
            )
        self._environment = repr(
            (
                dataclasses.replace(module, stablehlo=""),
                devices[0].device_kind,
                devices[0].client.platform_version,
            )
        )
        lowered = _DumpedLowered(module, devices, dict(backend.mocks_calls))
        self.lowered = cast(jax.stages.Lowered, lowered)

    def compiled(self, compiler_options: dict[str, Any] | None = None) -> jax.stages.Compiled:
        """Compiles with XLA's own schedule. Raises OllaError if XLA cannot compile the module."""
        return self._of_xla(lambda: self.lowered.compile(compiler_options=compiler_options))

    def captured(self) -> Compiled:
        """Compiles with XLA's own schedule; returns scheduled module and executable, serialized.
        Raises OllaError if XLA cannot compile the module.
        """
        return self._of_xla(lambda: capture(self.lowered))

    def planned(
        self,
        options: PlanOptions,
        given: Plan | None = None,
        compiler_options: dict[str, Any] | None = None,
    ) -> Outcome:
        """Compiles the module with a plan, where that lowers XLA's total.

        Args:
          options: of the plan. given: a plan to apply instead of searching for one.
          compiler_options: XLA's.

        Raises:
          BudgetError: the budget cannot be met.
          PlanMismatchError: the given plan is of another program.
          OllaError: XLA cannot compile the module.
        """
        if given is not None:
            return self._of_xla(
                lambda: compile_given(
                    self.lowered, given, options, compiler_options=compiler_options
                )
            )
        return self._of_xla(
            lambda: compile_planned(
                self.lowered,
                options,
                environment=self._environment,
                compiler_options=compiler_options,
            )
        )

    def _of_xla[T](self, work: Callable[[], T]) -> T:
        """Calls `work` and returns its result; XLA's error becomes an OllaError of one line."""
        try:
            return work()
        except jax.errors.JaxRuntimeError as error:
            raise OllaError(f"XLA cannot compile the module: {_line(error)}") from error


def _compile_of(client: Any) -> Callable[..., Any]:
    """Returns the client's function that compiles a module and does not load it."""
    return client.compile


def _marked(module: ir.Module, donors: Sequence[int]) -> list[dict[str, Any]]:
    """Sets JAX's attributes of arguments and results; returns the attributes of each argument.
    These say which arguments are donated (`donors`, by number), and the layouts of arguments and
    results. Clients read them there, and not from the module's attributes, where a dump has them.
    """
    from jax.extend.mlir import ir

    main: Any = next(
        f for f in module.body.operations if str(f.attributes["sym_name"]).strip('"') == "main"
    )
    kind = ir.FunctionType(main.attributes["function_type"].value)
    arguments, results = (
        _said(main, "arg_attrs", len(kind.inputs)),
        _said(main, "res_attrs", len(kind.results)),
    )
    for said, name in ((arguments, "parameter_layouts"), (results, "result_layout")):
        for one, layout in zip(said, _layouts(module, name, len(said)), strict=True):
            one.setdefault(_LAYOUT, ir.StringAttr.get(layout))
    for k in donors:
        arguments[k][_DONOR] = ir.BoolAttr.get(True)
    for said, name in ((arguments, "arg_attrs"), (results, "res_attrs")):
        main.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in said])
    return arguments


def _said(main: Any, name: str, count: int) -> list[dict[str, Any]]:
    """Returns the attributes, by name, of each argument or result of a function.
    `name` is "arg_attrs" or "res_attrs", and `count` the number of arguments or results.
    """
    from jax.extend.mlir import ir

    given = main.attributes[name] if name in main.attributes else None
    return [
        {} if given is None else {a.name: a.attr for a in ir.DictAttr(given[k])}
        for k in range(count)
    ]


def _layouts(module: ir.Module, name: str, count: int) -> list[str]:
    """The layouts of arguments or results, such as "{1,0}"; "default" where a dump has none.
    `name` is "parameter_layouts" or "result_layout", and `count` the number of these.
    """
    key = f"mhlo.xla_entry_computation_{name}"
    attributes = module.operation.attributes
    layouts = _DENSE.findall(str(attributes[key])) if key in attributes else []
    if len(layouts) != count:
        return ["default"] * count
    return [f"{{{numbers.strip('[]').replace(' ', '')}}}" for numbers in layouts]


def _drop_tilings(module: ir.Module) -> None:
    """Removes empty `result_tilings` attributes from a module: some XLA plugins reject them."""
    from jax.extend.mlir import ir

    def without(operation: Any) -> Any:
        attributes = operation.attributes
        if _TILINGS in attributes and not str(attributes[_TILINGS]).strip("[], "):
            del attributes[_TILINGS]
        return ir.WalkResult.ADVANCE

    module.operation.walk(without)


def _line(error: Exception) -> str:
    """An error's first line, cut to 300 characters, with the second if it ends in : or ; or, where
    it has no text, its type.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = " ".join(lines[:2]) if lines[0].endswith((";", ":")) else lines[0]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."

"""Compiles of one lowered stage: with XLA's own schedule, up to it, or with another in its place.
`Lowered.compile()` keeps one executable, which calls of the jitted function then run;
`compile(compiler_options={})` keeps none. So a stage is compiled with the latter, each time under a
token of its own (tokens.py). A last `compile()` under the chosen token finds it in JAX's memo.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from hlo.backend import PLATFORMS
from hlo.module import module_from_bytes
from olla_xla.compile import jax_private, rematerialization
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.compile.captured import Captured
from olla_xla.compile.hook import CompileRequest, listening
from olla_xla.compile.stablehlo import StableHlo
from olla_xla.compile.tokens import Token, mark_of, marked
from olla_xla.errors import OllaError

_logger = logging.getLogger("olla_xla")

NO_HOOK = "XLA did not hand over its schedule; only the cpu, cuda and tpu backends are supported"


class StageCompiles:
    """Compiles one lowered stage, whose module is `stablehlo`, in several ways; nothing else may
    compile it meanwhile.
    """

    def __init__(
        self,
        lowered: jax.stages.Lowered,
        compiler_options: dict[str, Any] | None,
        compile_kwargs: dict[str, Any],
    ) -> None:
        # The stage of a planned function would plan when compiled: JAX's own stage is taken.
        self._lowered: jax.stages.Lowered = getattr(lowered, "stage", lowered)
        self.stablehlo = StableHlo(self._lowered)
        self._kwargs = {**compile_kwargs, "compiler_options": compiler_options}
        self._tokens: set[bytes] = set()
        self._made: dict[int, tuple[Token, bool, Any]] = {}
        """An executable's id -> its token, whether XLA's rematerialization was off, and the
        executable, which keeps the id from reuse."""
        self._key = ""
        """Of stored plans, under which the function was last compiled."""
        self._own: jax.stages.Compiled | None = None

    @property
    def name(self) -> str:
        """The name of the stage's StableHLO module, for messages."""
        return self.stablehlo.name

    def handed_over(
        self, key: str, answer: Callable[[str, bytes], bytes | None]
    ) -> jax.stages.Compiled:
        """Compiles the stage; XLA hands the platform's name and the module that it has scheduled,
        serialized, to `answer`, which may replace it. `key`: names the executable in JAX's
        persistent cache, or ""; if it is there, the stage is compiled again without a key.
        Raises OllaError if XLA hands over no module on this backend.
        """
        asked: list[str] = []

        def shown(platform: str, module: bytes) -> bytes | None:
            asked.append(platform)
            return answer(platform, module)

        self._key = key
        compiled = self._compiled(Token(key), shown)
        if not asked:  # JAX's persistent cache had an executable, of an unknown plan.
            compiled = self._compiled(Token(), shown)
        if not asked:
            raise OllaError(NO_HOOK)
        return compiled

    def captured(self) -> tuple[Captured, jax.stages.Compiled]:
        """Compiles with XLA's own schedule; returns the scheduled module and the executable.
        The executable is kept for `own`. Raises OllaError if XLA hands over no module.
        """
        modules: list[tuple[str, bytes]] = []
        compiled = self._compiled(Token(), lambda *seen: modules.append(seen))
        if not modules:
            raise OllaError(NO_HOOK)
        platform, module = modules[-1]
        self._own = compiled
        return self.taken(platform, module), compiled

    def capture(self) -> Captured:
        """Compiles up to XLA's own schedule only, and returns the scheduled module.
        Raises OllaError if XLA hands over none.
        """
        modules: list[tuple[str, bytes]] = []
        self._scheduled({}, modules)
        if not modules:
            raise OllaError(NO_HOOK)
        return self.taken(*modules[-1])

    def taken(self, platform: str, module: bytes, seconds: float | None = None) -> Captured:
        """Adds to a scheduled module what planning must know of its device and XLA's schedulers;
        XLA took `seconds` to schedule it, if known.
        """
        kind, size = jax_private.device_kind(self._lowered), jax_private.device_bytes(self._lowered)
        return Captured(platform, module, self.alternative_orders(platform), seconds, kind, size)

    def alternative_orders(
        self, platform: str
    ) -> Callable[[], Mapping[str, tuple[str, ...]]] | None:
        """Returns a function that compiles up to a schedule of XLA's memory-minimizing scheduler
        and returns computation -> instruction names ({} if there is no schedule). Returns None in
        place of the function where XLA has no such scheduler.
        """
        other = PLATFORMS[platform].memory_scheduler
        return None if other is None else functools.partial(self._orders_with, dict(other))

    def _orders_with(self, scheduler: dict[str, str]) -> Mapping[str, tuple[str, ...]]:
        modules: list[tuple[str, bytes]] = []
        self._scheduled(scheduler, modules)
        if not modules:
            _logger.info("XLA's memory-minimizing scheduler made no schedule")
        return module_from_bytes(modules[-1][1]).order if modules else {}

    def _scheduled(self, more_options: dict[str, str], found: list[tuple[str, bytes]]) -> None:
        """Compiles up to XLA's schedule with `more_options`, compiler options added to the others;
        appends (platform, serialized module) to `found`, unless XLA fails or hands over none.
        """
        token = Token()
        request = CompileRequest(token.bytes, lambda *seen: found.append(seen), last=True)
        options = {**(self._kwargs["compiler_options"] or {}), **more_options}
        with self._under(token), contextlib.suppress(jax.errors.JaxRuntimeError):
            with listening(request):
                self._lowered.compile(**{**self._kwargs, "compiler_options": options})

    def own(self, key: str = "") -> jax.stages.Compiled:
        """Returns the executable with XLA's own schedule, compiled at the first call and kept.
        `key`: under which JAX's persistent cache may have it, or "".
        """
        if self._own is None and key:
            compiled = self._compiled(Token(key), lambda *_: None)
            self._own = None if mark_of(compiled) else compiled
        if self._own is None:
            self._own = self._compiled(Token(), lambda *_: None)
        return self._own

    def note_own(self, compiled: jax.stages.Compiled) -> None:
        """Keeps an executable of the stage with XLA's own schedule, for `own` to return."""
        self._own = compiled

    def own_quiet(self, key: str = "") -> jax.stages.Compiled | None:
        """Compiles XLA's own order without its rematerialization; None if that does not fit.
        `key` is as for `own`; also None if JAX's cache has a planned executable for it.
        """
        compiled = self._compiled(Token(key), lambda *_: None, quiet=True)
        if mark_of(compiled) or self.too_large(compiled, assigned_bytes(compiled)):
            return None
        return compiled

    def too_large(self, compiled: jax.stages.Compiled, total: int) -> str:
        """Says why XLA's rematerialization must stay on for `total` bytes; "" where they fit."""
        options = self._kwargs["compiler_options"]
        return rematerialization.why_it_must(self._lowered, options, compiled, total)

    def may_run_again(self, captured: Captured, compiled: jax.stages.Compiled) -> bool:
        """Whether XLA may rematerialize instructions when it compiles its own order; `compiled`:
        any executable of the stage.
        """
        how = self._lowered, self._kwargs["compiler_options"], compiled
        limited = PLATFORMS[captured.platform].memory_limit_flag
        return bool(limited) and rematerialization.may_act(captured.view, *how)

    def kept(self, compiled: jax.stages.Compiled) -> jax.stages.Compiled:
        """Makes later calls of the jitted function run this executable, unless compile arguments
        were given; returns it, or its like from JAX's memo. Call it after all other compiles.
        """
        plain = self._kwargs == {"compiler_options": None}
        kept = plain and jax_private.keep_executable(self._lowered, compiled)
        if kept or id(compiled) not in self._made:  # the latter where it was loaded again
            return compiled
        token, quiet, _ = self._made[id(compiled)]
        more = {"compiler_options": self._options(quiet)} if quiet else {}
        with self._under(token):
            return self._lowered.compile(**{**self._kwargs, **more})

    def _options(self, quiet: bool) -> dict[str, Any]:
        """Returns the compiler options, with XLA's rematerialization off if `quiet`."""
        options = self._kwargs["compiler_options"] or {}
        return rematerialization.without_pass(self._lowered, options) if quiet else options

    def _compiled(
        self, token: Token, answer: Callable[[str, bytes], bytes | None], *, quiet: bool = False
    ) -> jax.stages.Compiled:
        """Compiles under a token (text that makes the module unique), not for calls to run. XLA
        hands its scheduled module to `answer`, which may replace it. `quiet`: without
        rematerialization. The executable is kept in `_made`, so that `kept` finds it.
        """
        options = self._options(quiet)
        with self._under(token), listening(CompileRequest(token.bytes, answer)):
            compiled = self._lowered.compile(**{**self._kwargs, "compiler_options": options})
        self._made[id(compiled)] = (token, quiet, compiled)
        return compiled

    @contextlib.contextmanager
    def _under(self, token: Token) -> Iterator[None]:
        """Context manager: compiles in it have the token, a text that makes their module unique, so
        that JAX's memo of compiles keeps them apart. The token is noted for `close`.
        """
        self._tokens.add(token.bytes)
        with marked(self._lowered, token.bytes), token.scope():
            with contextlib.nullcontext() if token.lasting else jax_private.no_cache_writes():
                yield

    def close(self) -> None:
        """Makes JAX drop the executables compiled here from its memo; those in use stay."""
        for token in list(self._tokens):
            with marked(self._lowered, token):
                jax_private.forget_compiles(self._lowered)

"""XLA's one entry point into olla_xla: the scheduled module, handed over inside a compile.
XLA calls the hook for every module of the process, on the thread that compiles it, and waits. So
the planner runs on the caller's thread, with its warnings and JAX settings; signal handlers run
there too (handlers.py). A module is ours if it has a token, a module-level frontend attribute that
is kept up to POST_SCHEDULER. Other modules are not changed.
"""

import contextlib
import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Iterator

import jax

from hlo.backend import PLATFORMS
from hlo.rewrite.handed_back import keep_frame_ids
from olla_xla.compile.jax_private import own_module

_TOKEN = re.compile(rb"olla_xla-(?:capture|plan)-[0-9a-f]{32}")


@dataclasses.dataclass(eq=False)
class CompileRequest:
    """One compile during which XLA's hook passes the scheduled module to a function of ours.

    Attributes:
      token: bytes in the module by which it is recognised. error: what `transform` raised.
      transform: (platform, module) -> module or None for no change; an error ends the compile.
      last: whether the compile ends after `transform`, with an error from XLA.
    """

    token: bytes
    transform: Callable[[str, bytes], bytes | None]
    last: bool = False
    error: BaseException | None = None


class _Ended(Exception):
    """Raised to XLA inside the hook to end a compile."""


class _Hook:
    """The callbacks that XLA calls with each scheduled module, registered at the first request.
    They are never cleared: XLA may be about to call one on another thread, for another compile
    (xla.clear_hlo_module_transformation, jaxlib 0.12: a segmentation fault).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: tuple[CompileRequest, ...] = ()
        self._platforms: tuple[str, ...] = ()

    @contextlib.contextmanager
    def listening(self, request: CompileRequest) -> Iterator[None]:
        """Context manager in which XLA's callbacks pass the module with the request's token to its
        `transform`; at its end it raises what that raised.
        """
        with self._lock:
            self._requests += (request,)
            self._register()
        try:
            yield
        except jax.errors.JaxRuntimeError:
            if request.error is None:
                raise
        finally:
            with self._lock:
                self._requests = tuple(r for r in self._requests if r is not request)
        if request.error is not None:
            raise request.error

    def _register(self) -> None:
        xla = own_module("jax._src.xla_transform", "jax.extend.xla")

        for platform in PLATFORMS:
            if platform in self._platforms:
                continue
            # A platform without its plugin cannot be registered, and cannot compile either.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                xla.register_hlo_module_transformation(
                    functools.partial(self._callback, platform),
                    name="olla_xla",
                    stage=xla.PipelineStage.POST_SCHEDULER,
                    platforms=(platform,),
                )
                self._platforms += (platform,)

    def _callback(self, platform: str, module: bytes) -> bytes | None:
        """XLA's callback: passes a scheduled module to the request whose token it has, if any.
        Returns the new module, or None for no change. If that request's `transform` fails (the
        error is kept in it), or it is to end the compile, raises _Ended. It takes no lock:
        `_register` may hold ours while it waits for XLA.
        """
        if not self._requests:
            return None
        match = _TOKEN.search(module)
        if match is None:
            return None
        requests = [r for r in self._requests if r.token == match.group()]
        if not requests:
            return None
        try:
            result = requests[0].transform(platform, module)
        except BaseException as error:
            requests[0].error = error
            raise _Ended from error
        if requests[0].last:
            raise _Ended
        return None if result is None else keep_frame_ids(result)


_hook = _Hook()


def listening(request: CompileRequest) -> contextlib.AbstractContextManager[None]:
    """Context manager in which XLA's hook passes the module with the request's token to its
    `transform`. At its end it raises whatever `transform` raised.
    """
    return _hook.listening(request)

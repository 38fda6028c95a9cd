"""What signal handlers of the program raise while it waits for a plan.
Python runs handlers in the main thread, between any two of its instructions: inside of the planner,
where `except Exception` would take what a handler raises for a fault of planning, and inside of
XLA's hook, whose exceptions XLA turns into errors of its own.
"""

import functools
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class _Unwind(BaseException):
    """Raised by a wrapped signal handler to leave the function past any `except Exception`."""


def raises_of_handlers[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Wraps a function so that an exception from a signal handler always ends the call with it.
    Handlers run when their signals arrive, as ever. Where one raises, the function ends at once,
    and the exception is raised whatever else was raised or caught on the way out. In other threads,
    where no handler runs, the function is called as it is.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if threading.current_thread() is not threading.main_thread():
            return function(*args, **kwargs)  # no handler runs in this thread
        raised: list[BaseException] = []

        def held(handler: Callable[..., Any]) -> Callable[[int, FrameType | None], None]:
            def hold(number: int, frame: FrameType | None) -> None:
                try:
                    handler(number, frame)
                except BaseException as error:
                    if not isinstance(error, _Unwind):  # of a signal that came amid this handler
                        raised.append(error)
                    # Not in `call` itself, which puts the handlers back.
                    if frame is None or frame.f_code not in (call.__code__, hold.__code__):
                        raise _Unwind from None

            return hold

        before = {s: h for s in signal.valid_signals() if callable(h := signal.getsignal(s))}
        meanwhile = {number: held(handler) for number, handler in before.items()}
        try:
            for number, handler in meanwhile.items():
                signal.signal(number, handler)
            return function(*args, **kwargs)
        finally:
            for number, handler in meanwhile.items():
                if signal.getsignal(number) is handler:  # none has set another one
                    signal.signal(number, before[number])
            if raised:
                raise raised[-1] from raised[-1].__cause__

    return functools.wraps(function)(call)

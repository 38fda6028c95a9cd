"""The exception tree: every error olla_xla raises on purpose derives from `OllaError`."""


class OllaError(Exception):
    """Base of all olla_xla errors; its message is one line that says what to do."""


class InputError(OllaError, ValueError):
    """A flag, option or argument is not usable (exit code 2 of the command line)."""


class JitError(InputError, TypeError):
    """A function or an option that `jax.jit` rejects too, with a TypeError, as this is one."""


class LimitError(InputError):
    """A limit (of time, steps, memory, ...) is out of range or cannot be met."""


class BudgetError(LimitError):
    """No plan that was found fits the memory budget.

    Attributes:
      budget_bytes: the budget. least_bytes: the least total bytes of any plan that was found.
      reason: what kept the total from being lower, or "".
    """

    def __init__(self, budget_bytes: int, least_bytes: int, reason: str = "") -> None:
        detail = f" ({reason})" if reason else ""
        budget, least = _told_apart(budget_bytes, least_bytes)
        unit, size = ("KiB", 2**10) if least_bytes < 10 * 2**20 else ("MiB", 2**20)
        super().__init__(
            f"memory_budget of {budget} cannot be met{detail}; the least that was reached is "
            f"{least}, so ask for memory_budget='{-(-least_bytes // size)}{unit}' or more"
        )
        self.budget_bytes = budget_bytes
        self.least_bytes = least_bytes
        self.reason = reason

    def __reduce__(self) -> tuple:
        return BudgetError, (self.budget_bytes, self.least_bytes, self.reason)


def _told_apart(budget_bytes: int, least_bytes: int) -> tuple[str, str]:
    """The two sizes as text: in MB, or KB if small; in bytes if they would read alike."""
    unit, size = ("KB", 2**10) if least_bytes < 2**20 else ("MB", 2**20)
    budget, least = (f"{b / size:,.1f} {unit}" for b in (budget_bytes, least_bytes))
    if budget == least:
        return f"{budget_bytes:,} bytes", f"{least_bytes:,} bytes"
    return budget, least


class ModuleFormatError(InputError):
    """A file or byte string is not an HLO module that can be read."""


class PlanFileError(InputError):
    """A plan file cannot be written or read, or has a version that is not supported."""


class VersionError(OllaError, RuntimeError):
    """The installed JAX is too old (its XLA has no hook for plans), or newer than was tested."""


class GraphError(OllaError, ValueError):
    """A tensor graph is malformed: cyclic, negative size, unknown operator."""


class PlanMismatchError(OllaError):
    """A plan was made for another module than the one it is applied to."""


class KernelError(OllaError):
    """No order lets a kernel's operands and results share memory as in XLA's own module.
    A kernel is an instruction whose rounding may depend on that.
    """


class CheckError(OllaError):
    """Our checker rejects a plan, or XLA's buffer assignment contradicts it (exit code 1)."""


class ResultsError(CheckError):
    """Our checker finds that an executable computes other results than XLA's module."""


class SolverError(OllaError):
    """A solver failed, is not licensed, or returned a point that breaks its constraints."""


class FallbackError(OllaError):
    """Raised instead of running XLA's schedule, if OLLA_XLA_STRICT=1 or a budget is to be met."""


class AgreementError(OllaError, RuntimeError):
    """The processes of a program may not all run the same plan; they must be restarted."""

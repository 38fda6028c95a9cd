"""What is in memory at the peak of a step, and why.

- `analyze_module(executable, target)`: an `Analysis` of a scheduled module.
- `donation`: what became of donated arguments.
- `difference`: what two analyses or plans differ by.
"""

from olla_xla.analysis.analysis import Analysis, Executable, analyze_module

__all__ = ["Analysis", "Executable", "analyze_module"]

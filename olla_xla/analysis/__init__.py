"""What is in memory at the peak of a step, and why.

- `analysis`: `Analysis`, and `analyze_module(executable, target)`, which makes one.
- `donation`: what became of donated arguments.
- `difference`: what two analyses or plans differ by.
- `html`, `figure`, `terminal`: how an analysis is shown.
"""

from hlo.late import late_modules

__getattr__ = late_modules(__name__, "checkpointed reading")

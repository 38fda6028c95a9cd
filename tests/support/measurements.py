"""Made-up measurements of a step, for the tests of what is done with them."""

from olla_xla.tools.measure.records import Measured


def measured(**changes):
    fields = dict(
        planned=True, reason="", leaves=("['w']", "loss"), digests=(("a", "b"), ("c", "d")),
        step_seconds=(1.0,), assigned_bytes=1, xla_bytes=2, process_peak_bytes=3,
        steps_peak_bytes=None, device_peak_bytes=None, cached=True, device="cpu",
    )  # fmt: skip
    return Measured(**{**fields, **changes})

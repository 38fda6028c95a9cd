"""A device with memory of its own, as far as its statistics tell."""

import weakref

__all__ = ["FakeArray", "FakeDevice"]


class FakeDevice:
    """Counts the bytes of arrays on it while somebody holds them.

    Args:
      held: bytes in use from the start. peak: earlier peak. tells: whether it has statistics.
    """

    platform, device_kind = "gpu", "NVIDIA Fake"

    def __init__(self, held=0, peak=0, tells=True):
        self._used, self._peak, self._tells = held, max(held, peak), tells

    def memory_stats(self):
        if not self._tells:
            return None
        return {"bytes_in_use": self._used, "peak_bytes_in_use": self._peak}

    def take(self, nbytes):
        self._used += nbytes
        self._peak = max(self._peak, self._used)

    def give(self, nbytes):
        self._used -= nbytes


class FakeArray:
    """An array of a device, which takes its memory for as long as it is held."""

    def __init__(self, device, nbytes):
        self.nbytes = nbytes
        device.take(nbytes)
        self.free = weakref.finalize(self, device.give, nbytes)

    def block_until_ready(self):
        return self

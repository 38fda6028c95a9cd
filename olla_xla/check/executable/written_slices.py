"""Which slice of an array was written last, for arrays that are updated slice by slice.

An array and those that it was updated from are one history, in which each has a version. So the
slice that an array has at a place is found in time that does not grow with the updates. Once all
slices were written, nothing of the array before them is left, and a new history begins.
"""

from __future__ import annotations

import bisect
import dataclasses

from olla_xla.check.executable.records import Digit

_Writes = tuple[list[int], list[bytes]]
"""Versions that wrote a slice, ascending, and what each wrote."""


@dataclasses.dataclass
class _History:
    """Updates of an array, one after the other.

    Attributes:
      base: number of the array that the first one updates. digit: of its row that counts slices.
      latest: version of the newest array. writes: by slice.
    """

    base: bytes
    digit: Digit
    latest: int = 0
    writes: dict[int, _Writes] = dataclasses.field(default_factory=dict)

    def at(self, place: int, version: int) -> bytes | None:
        """The slice at a place in a version; None if nothing was written there."""
        versions, rows = self.writes.get(place, ((), ()))
        found = bisect.bisect_right(versions, version)
        return rows[found - 1] if found else None

    def until(self, version: int) -> _History:
        """A history of its own with the updates up to a version."""
        kept = {place: self.at(place, version) for place in self.writes}
        writes = {place: ([version], [row]) for place, row in kept.items() if row is not None}
        return _History(self.base, self.digit, version, writes)


class WrittenSlices:
    """For arrays that are updated at constant indices: what was last written at each index."""

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[_History, int]] = {}
        self._all: dict[bytes, list[bytes]] = {}
        self._complete: set[bytes] = set()

    def note(
        self, number: bytes, array: bytes, digit: Digit, place: int, row: bytes
    ) -> list[bytes] | None:
        """Records that array `number` is array `array` with the slice at index `place` replaced.

        Args:
          number: the array's value number. array: the other's. row: the slice's, flattened.
          digit: (count, stride in elements) of the sliced dimension. place: index of the slice.

        Returns:
          All slices in their order, if this was the last one that had not been written; else None.
        """
        if number in self._found:
            return self._all.get(number)
        history, version = self._found.get(array, (None, 0))
        if history is None or history.digit != digit or array in self._complete:
            history, version = _History(array, digit), 0
        elif history.latest > version:
            history = history.until(version)
        history.latest = version + 1
        is_last = place not in history.writes and len(history.writes) + 1 == digit[0]
        versions, rows = history.writes.setdefault(place, ([], []))
        versions.append(version + 1)
        rows.append(row)
        self._found[number] = history, version + 1
        if is_last:
            self._all[number] = [history.writes[k][1][-1] for k in range(digit[0])]
        return self._all.get(number)

    def note_complete(self, number: bytes, digit: Digit, rows: list[bytes]) -> None:
        """Records the number of an array that is these slices, whatever they were written into."""
        if number not in self._complete:
            writes = {place: ([1], [row]) for place, row in enumerate(rows)}
            self._found[number] = _History(number, digit, 1, writes), 1
            self._complete.add(number)

    def at(self, number: bytes, digit: Digit, place: int) -> tuple[bytes | None, bytes]:
        """What is in the slice at index `place` of the array with value number `number`.

        Returns:
          Its number, if it was written. Else None, and the number of an array that has the same
          slice there.
        """
        history, version = self._found.get(number, (None, 0))
        if history is None or history.digit != digit:
            return None, number
        return history.at(place, version), history.base

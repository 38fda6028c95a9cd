"""Python call stacks of an HLO module's operations, as JAX leaves them in its metadata."""

from typing import NamedTuple

from hlo import xla_pb2


class SourceFrame(NamedTuple):
    """One call of a Python call stack: file, line number from 1, and function name or ""."""

    file: str
    line: int
    function: str

    @property
    def location(self) -> str:
        """The file and line as text: "file:line"."""
        return f"{self.file}:{self.line}"


class StackFrames:
    """Looks up Python call stacks of operations, by their OpMetadata, in a module's frame index."""

    def __init__(self, index: xla_pb2.StackFrameIndexProto) -> None:
        self._index = index
        self._frames: dict[int, SourceFrame] = {}
        self._stacks: dict[int, tuple[SourceFrame, ...]] = {}

    def location(self, metadata: xla_pb2.OpMetadata) -> str:
        """Returns the innermost Python call under which it was traced, "file:line"; or ""."""
        if metadata.source_file:
            return f"{metadata.source_file}:{metadata.source_line}"
        frame_id = metadata.stack_frame_id
        return self._frame(frame_id).location if self._is_known(frame_id) else ""

    def stack(self, metadata: xla_pb2.OpMetadata) -> tuple[SourceFrame, ...]:
        """Returns the Python calls in which an operation was traced, innermost first; or ()."""
        first = metadata.stack_frame_id
        if first not in self._stacks:
            self._stacks[first] = self._found(first)
        calls = self._stacks[first]
        if not calls and metadata.source_file:
            return (SourceFrame(metadata.source_file, metadata.source_line, ""),)
        return calls

    def _found(self, frame_id: int) -> tuple[SourceFrame, ...]:
        calls: list[SourceFrame] = []
        while self._is_known(frame_id) and len(calls) < len(self._index.stack_frames):
            calls.append(self._frame(frame_id))
            frame_id = self._index.stack_frames[frame_id - 1].parent_frame_id
        return tuple(calls)

    def _is_known(self, frame_id: int) -> bool:
        return 0 < frame_id <= len(self._index.stack_frames)

    def _frame(self, frame_id: int) -> SourceFrame:
        if frame_id not in self._frames:
            index = self._index
            location = index.file_locations[index.stack_frames[frame_id - 1].file_location_id - 1]
            self._frames[frame_id] = SourceFrame(
                index.file_names[location.file_name_id - 1],
                location.line,
                index.function_names[location.function_name_id - 1],
            )
        return self._frames[frame_id]

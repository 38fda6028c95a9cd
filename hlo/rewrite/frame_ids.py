"""Source lines of operations, kept through XLA's own numbering of their stack frames."""

from __future__ import annotations

from hlo.wire import Message

__all__ = ["keep_frame_ids"]

_STACK_FRAME_INDEX, _STACK_FRAMES, _PARENT_FRAME_ID = 17, 4, 2
"""Fields of HloModuleProto, StackFrameIndexProto and StackFrame."""


def keep_frame_ids(module: bytes) -> bytes:
    """A module for XLA to take from a hook, such that its operations keep their source lines.

    XLA numbers the frames of a module that a hook returns anew, each after its parents as
    operations name them (HloModule::CanonicalizeStackFrameIds), and then drops the returned
    table for the one it had (UpdateHloModuleFromProto). Where each frame's parent is the one
    before it, the new numbers are the old ones.

    Args:
      module: a serialized HloModuleProto.
    """
    proto = Message(module)
    if _STACK_FRAME_INDEX not in proto.numbers():
        return module
    frames = proto.message(_STACK_FRAME_INDEX).messages(_STACK_FRAMES)
    for parent, frame in enumerate(frames):
        frame.set_integer(_PARENT_FRAME_ID, parent)
    return proto.encode()

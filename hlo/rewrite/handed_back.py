"""Works around what XLA changes in a module that a hook returns: source lines, memory spaces."""

from hlo.wire import Message

_STACK_FRAME_INDEX, _STACK_FRAMES, _PARENT_FRAME_ID = 17, 4, 2
"""Fields of HloModuleProto, StackFrameIndexProto and StackFrame."""

_COMPUTATIONS, _HOST_PROGRAM_SHAPE, _ENTRY_ID = 3, 4, 6
_PROGRAM_SHAPE, _COMPUTATION_ID, _RESULT = 4, 5, 2
_TUPLE_SHAPES, _LAYOUT, _MEMORY_SPACE = 4, 5, 8
"""Fields of HloModuleProto, of HloComputationProto and ProgramShapeProto, of ShapeProto."""


def keep_frame_ids(module: bytes) -> bytes:
    """Rewrites the stack frames of a module for XLA's hook, so that instructions keep source lines.

    XLA numbers the frames of a module that a hook returns anew, each after its parents as
    operations name them (HloModule::CanonicalizeStackFrameIds), and then drops the returned table
    for the one it had (UpdateHloModuleFromProto). Where each frame's parent is the one before it,
    the new numbers are the old ones. Takes and returns a serialized HloModuleProto.
    """
    proto = Message(module)
    if _STACK_FRAME_INDEX not in proto.numbers():
        return module
    frames = proto.message(_STACK_FRAME_INDEX).messages(_STACK_FRAMES)
    for parent, frame in enumerate(frames):
        frame.set_integer(_PARENT_FRAME_ID, parent)
    return proto.encode()


def loses_memories(module: bytes) -> bool:
    """Whether results would change their memory space if a hook returned this module to XLA.

    XLA makes the entry's layout anew from its root (UpdateHloModuleFromProto). On a CPU a result in
    `pinned_host` has its memory space in the layout alone, and JAX would find it on the device. The
    module is a serialized HloModuleProto, as XLA gave it to the hook.
    """
    proto = Message(module)
    asked = _memories(Message(proto.blob(_HOST_PROGRAM_SHAPE)))
    if not any(asked):
        return False
    entry = proto.integer(_ENTRY_ID)
    computations = proto.messages(_COMPUTATIONS)
    (computation,) = [c for c in computations if c.integer(_COMPUTATION_ID) == entry]
    return asked != _memories(computation.message(_PROGRAM_SHAPE))


def _memories(program_shape: Message) -> list[int]:
    """Lists the memory spaces, by number, of the arrays in a ProgramShapeProto's result."""

    def visit(shape: Message) -> list[int]:
        if parts := shape.messages(_TUPLE_SHAPES):
            return [space for part in parts for space in visit(part)]
        return [layout.integer(_MEMORY_SPACE) for layout in shape.messages(_LAYOUT)]

    return [space for shape in program_shape.messages(_RESULT) for space in visit(shape)]

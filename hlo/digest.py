"""The digest of a serialized module, by which another process recognises an executable."""

from __future__ import annotations

import hashlib

from hlo import xla_pb2
from hlo.wire import Message

_ID = xla_pb2.HloModuleProto.DESCRIPTOR.fields_by_name["id"].number


def module_digest(module: bytes) -> str:
    """SHA-256 of a serialized HloModuleProto without its id, which differs between processes.

    Raises:
      HloError: `module` is not a protobuf message.
    """
    message = Message(module)
    message.set_integer(_ID, 0)
    return hashlib.sha256(message.encode()).hexdigest()

"""QUERY: a statement as text, with the session variables it ran under.

4    connection that ran it
4    seconds it ran
1    bytes of the default schema's name
2    error code it ended with
2    bytes of status variables
n    status variables (`status_variables.py`)
n+1  schema, then 0
n    the statement, in the character set of the session
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Self

from pumpclient.mysql.events.field_reader import BodyReader, pack_uint
from pumpclient.mysql.events.status_variables import StatusVariables, decode_status

_HEAD = struct.Struct("<IIBHH")


@dataclass(frozen=True, slots=True)
class Query:
    """A statement; BEGIN and COMMIT of engines without transactions are such too."""

    schema: bytes
    statement: bytes
    status: bytes = field(default=b"", repr=False)
    thread_id: int = 0
    ran_s: int = 0
    error_code: int = 0

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        body = BodyReader(data, "QUERY")
        thread_id, ran_s, schema_length, error_code, status_size = _HEAD.unpack(
            body.take(_HEAD.size)
        )
        status = body.take(status_size)
        schema = body.take(schema_length)
        if body.uint(1) != 0:
            raise body.malformed("no zero behind the schema's name")
        return cls(schema, body.rest(), status, thread_id, ran_s, error_code)

    def encode(self) -> bytes:
        """Return the body."""
        return b"".join(
            [
                pack_uint(self.thread_id, 4),
                pack_uint(self.ran_s, 4),
                pack_uint(len(self.schema), 1),
                pack_uint(self.error_code, 2),
                pack_uint(len(self.status), 2),
                self.status,
                self.schema + b"\0",
                self.statement,
            ]
        )

    def variables(self) -> StatusVariables:
        """Return the session's variables; raise `Malformed` when one is unknown."""
        return decode_status(self.status)

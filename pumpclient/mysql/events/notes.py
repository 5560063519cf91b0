"""Notes: the events that carry no change of data; what was asked, what is well, what went wrong.

HEARTBEAT       the name of the file; its position is the header's
HEARTBEAT_V2    fields: number, length, value; 1 the file's name, 2 the position; 0 ends them
INCIDENT        2 number, 1 bytes of the message, message: data may be missing after it
ROWS_QUERY      1 ignored, then the statement that the next rows come from
ANNOTATE_ROWS   the same of MariaDB, statement only
INTVAR          1 kind, 8 value                     } session values for the statement
RAND            8 seed, 8 seed                      } that follows, when it is logged
USER_VAR        4 bytes of name, name, 1 is null, … } as text
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pumpclient.mysql.events.field_reader import BodyReader, pack_uint

_NAME_FIELD, _POSITION_FIELD, _END_FIELD = 1, 2, 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The server is alive and has nothing new; `position` is None where the header has it."""

    file: str
    position: int | None = None

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a HEARTBEAT; raise `Malformed` when it is none."""
        body = BodyReader(data, "HEARTBEAT")
        return cls(body.text(body.left))

    @classmethod
    def decode_v2(cls, data: bytes) -> Self:
        """Read a HEARTBEAT_V2; fields that are unknown are passed over, as it is meant."""
        body = BodyReader(data, "HEARTBEAT_V2")
        file, position = "", None
        while body.left and (number := body.packed()) != _END_FIELD:
            value = BodyReader(body.take(body.packed()), "HEARTBEAT_V2")
            if number == _NAME_FIELD:
                file = value.text(value.left)
            elif number == _POSITION_FIELD:
                position = value.packed()
        return cls(file, position)


@dataclass(frozen=True, slots=True)
class Incident:
    """Something happened to the server that its binlog does not hold."""

    number: int
    message: str

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        body = BodyReader(data, "INCIDENT")
        number = body.uint(2)
        return cls(number, body.take(body.uint(1)).decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class RowsQuery:
    """The statement that the rows after it come from; for people only."""

    statement: bytes

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read MySQL's ROWS_QUERY; raise `Malformed` when it is none."""
        body = BodyReader(data, "ROWS_QUERY")
        body.take(1)  # A length that says nothing above 255.
        return cls(body.rest())


@dataclass(frozen=True, slots=True)
class IntVar:
    """LAST_INSERT_ID (1) or INSERT_ID (2) of the next statement."""

    kind: int
    value: int

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        body = BodyReader(data, "INTVAR")
        event = cls(body.uint(1), body.uint(8))
        body.finish()
        return event


@dataclass(frozen=True, slots=True)
class Rand:
    """The seeds of RAND() in the next statement."""

    seed1: int
    seed2: int

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        body = BodyReader(data, "RAND")
        event = cls(body.uint(8), body.uint(8))
        body.finish()
        return event


@dataclass(frozen=True, slots=True)
class UserVar:
    """A user variable of the next statement; `value` is None for NULL, else type and bytes."""

    name: bytes
    value: bytes | None

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        body = BodyReader(data, "USER_VAR")
        name = body.take(body.uint(4))
        return cls(name, None if body.uint(1) else body.rest())

    def encode(self) -> bytes:
        """Return the body."""
        value = b"\1" if self.value is None else b"\0" + self.value
        return pack_uint(len(self.name), 4) + self.name + value

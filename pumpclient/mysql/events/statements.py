"""QUERY: a statement as text, with its session variables.

    4    connection that ran it
    4    seconds it ran
    1    bytes of the default schema's name
    2    error code it ended with
    2    bytes of status variables
    n    status variables: the session that the statement ran under
    n+1  schema, then 0
    n    the statement, in the character set of the session

Each status variable is a code of one byte and a value whose length only the code gives, so an
unknown code makes everything after it unreadable.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pumpclient.mysql.events.frame import BodyReader, pack_uint
from pumpclient.mysql.events.transactions import decompress_block

_MANY_SCHEMAS = 254
"""This number of updated schemas means: too many to be named."""


@dataclass(frozen=True, slots=True)
class StatusVariables:
    """The session of a QUERY, as far as it counts; None for a variable that was not sent."""

    flags2: int | None = None
    sql_mode: int | None = None
    auto_increment: tuple[int, int] | None = None
    charsets: tuple[int, int, int] | None = None
    """Collation ids of character_set_client, collation_connection, collation_server."""
    time_zone: str | None = None
    lc_time_names: int | None = None
    microseconds: int | None = None
    explicit_defaults_ts: int | None = None
    default_collation_utf8mb4: int | None = None
    mariadb_hrnow_us: int | None = None
    mariadb_gtid_flags3: tuple[int, int] | None = None
    """MariaDB's additional flags, and for an ALTER's second phase the number of its first, else 0.
    """
    mariadb_collations: tuple[tuple[int, int], ...] | None = None
    """character_set_collations: pairs of a charset's default collation and its replacement."""


def _skip_schemas(body: BodyReader) -> None:
    count = body.uint(1)
    for _ in range(0 if count == _MANY_SCHEMAS else count):
        end = body.data.find(b"\0", body.at)
        if end < 0:
            raise body.malformed("a name without an end")
        body.take(end + 1 - body.at)


ALTER_BEGINS, ALTER_COMMITS, ALTER_IS_UNDONE = 2, 4, 8
"""The phases of an ALTER under `binlog_alter_two_phase`, in MariaDB's flags."""


def _read_flags3(body: BodyReader) -> tuple[int, int]:
    flags = body.uint(1)
    return flags, body.uint(8) if flags & (ALTER_COMMITS | ALTER_IS_UNDONE) else 0


def _number(size: int) -> Callable[[BodyReader], int]:
    return lambda body: body.uint(size)


def _numbers(count: int) -> Callable[[BodyReader], tuple[int, ...]]:
    return lambda body: tuple(body.uint(2) for _ in range(count))


_SKIPPED = ""
_READERS: dict[int, tuple[str, Callable[[BodyReader], Any]]] = {
    0: ("flags2", _number(4)),
    1: ("sql_mode", _number(8)),
    2: (_SKIPPED, lambda body: body.take(body.uint(1) + 1)),  # The catalog, and a zero.
    3: ("auto_increment", _numbers(2)),
    4: ("charsets", _numbers(3)),
    5: ("time_zone", lambda body: body.text(body.uint(1))),
    6: (_SKIPPED, lambda body: body.take(body.uint(1))),  # The catalog.
    7: ("lc_time_names", _number(2)),
    8: (_SKIPPED, _number(2)),  # The database's collation.
    9: (_SKIPPED, _number(8)),  # The tables that an UPDATE of several changes.
    10: (_SKIPPED, _number(4)),
    11: (_SKIPPED, lambda body: (body.take(body.uint(1)), body.take(body.uint(1)))),  # The invoker.
    12: (_SKIPPED, _skip_schemas),  # The databases that it changes.
    13: ("microseconds", _number(3)),
    16: ("explicit_defaults_ts", _number(1)),
    17: (_SKIPPED, _number(8)),  # The number of a DDL's transaction.
    18: ("default_collation_utf8mb4", _number(2)),
    19: (_SKIPPED, _number(1)),  # sql_require_primary_key.
    20: (_SKIPPED, _number(1)),  # default_table_encryption.
    21: (_SKIPPED, _number(1)),  # Of MySQL 9, with statements that change rows.
    128: ("mariadb_hrnow_us", _number(3)),
    129: (_SKIPPED, _number(8)),  # The number of a DDL's transaction.
    130: ("mariadb_gtid_flags3", _read_flags3),
    131: (
        "mariadb_collations",
        lambda body: tuple((body.uint(2), body.uint(2)) for _ in range(body.uint(1))),
    ),
}


def decode_status(data: bytes) -> StatusVariables:
    """Read the variables; raise `Malformed` for an unknown code."""
    body = BodyReader(data, "QUERY status variables")
    found: dict[str, Any] = {}
    while body.left:
        code = body.uint(1)
        if code not in _READERS:
            raise body.malformed(f"variable {code} is unknown")
        name, read = _READERS[code]
        value = read(body)
        if name:
            found[name] = value
    return StatusVariables(**found)


_HEAD = struct.Struct("<IIBHH")


@dataclass(frozen=True, slots=True)
class Query:
    """A statement; BEGIN and COMMIT of non-transactional engines are also statements."""

    schema: bytes
    statement: bytes
    status: bytes = field(default=b"", repr=False)
    thread_id: int = 0
    ran_s: int = 0
    error_code: int = 0

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "QUERY")
        thread_id, ran_s, schema_length, error_code, status_size = _HEAD.unpack(
            body.take(_HEAD.size)
        )
        status = body.take(status_size)
        schema = body.take(schema_length)
        if body.uint(1) != 0:
            raise body.malformed("no zero after the schema's name")
        return cls(schema, body.rest(), status, thread_id, ran_s, error_code)

    @classmethod
    def decode_compressed(cls, data: bytes) -> Self:
        query = cls.decode(data)
        return replace(query, statement=decompress_block(query.statement))

    def encode(self) -> bytes:
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
        """Return the session's variables; raise `Malformed` if a variable is unknown."""
        return decode_status(self.status)

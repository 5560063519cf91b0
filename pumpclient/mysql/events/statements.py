"""Statement events: QUERY, and the events that accompany a statement.

QUERY, a statement as text, with its session variables:

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

    ROWS_QUERY      1 ignored, then the statement that the next rows come from
    ANNOTATE_ROWS   the same of MariaDB, statement only
    INTVAR          1 kind, 8 value                     } session values for the statement
    RAND            8 seed, 8 seed                      } that follows, when it is logged
    USER_VAR        4 bytes of name, name, 1 is null, … } as text
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from pumpclient.mysql.events.frame import BodyReader, pack_uint

_MANY_SCHEMAS = 254
"""This number of updated schemas means: too many to be named."""


@dataclass(frozen=True, slots=True)
class StatusVariables:
    """The session of a QUERY; None for a variable that its server did not send."""

    flags2: int | None = None
    sql_mode: int | None = None
    catalog: bytes | None = None
    auto_increment: tuple[int, int] | None = None
    charsets: tuple[int, int, int] | None = None
    """Collation ids of character_set_client, collation_connection, collation_server."""
    time_zone: str | None = None
    lc_time_names: int | None = None
    charset_database: int | None = None
    table_map_for_update: int | None = None
    master_data_written: int | None = None
    invoker: tuple[bytes, bytes] | None = None
    updated_schemas: tuple[bytes, ...] | None = None
    """Empty when they are too many to be named."""
    microseconds: int | None = None
    explicit_defaults_ts: int | None = None
    ddl_xid: int | None = None
    default_collation_utf8mb4: int | None = None
    sql_require_primary_key: int | None = None
    default_table_encryption: int | None = None
    mysql_code_21: int | None = None
    """Written by MySQL 9 with statements that change rows; it has no public name."""
    mariadb_hrnow_us: int | None = None
    mariadb_xid: int | None = None
    mariadb_gtid_flags3: tuple[int, int] | None = None
    """MariaDB's additional flags, and for an ALTER's second phase the number of its first, else 0.
    """
    mariadb_collations: tuple[tuple[int, int], ...] | None = None
    """character_set_collations: pairs of a charset's default collation and its replacement."""


def _read_pair(body: BodyReader) -> tuple[bytes, bytes]:
    return body.take(body.uint(1)), body.take(body.uint(1))


def _read_schemas(body: BodyReader) -> tuple[bytes, ...]:
    count = body.uint(1)
    return tuple(_zero_ended(body) for _ in range(0 if count == _MANY_SCHEMAS else count))


def _zero_ended(body: BodyReader) -> bytes:
    end = body.data.find(b"\0", body.at)
    if end < 0:
        raise body.malformed("a name without an end")
    name = body.take(end - body.at)
    body.take(1)
    return name


def _read_collations(body: BodyReader) -> tuple[tuple[int, int], ...]:
    return tuple((body.uint(2), body.uint(2)) for _ in range(body.uint(1)))


def _read_old_catalog(body: BodyReader) -> bytes:
    name = body.take(body.uint(1))
    body.take(1)
    return name


ALTER_BEGINS, ALTER_COMMITS, ALTER_IS_UNDONE = 2, 4, 8
"""The phases of an ALTER under `binlog_alter_two_phase`, in MariaDB's flags."""


def _read_flags3(body: BodyReader) -> tuple[int, int]:
    flags = body.uint(1)
    return flags, body.uint(8) if flags & (ALTER_COMMITS | ALTER_IS_UNDONE) else 0


def _number(size: int) -> Callable[[BodyReader], int]:
    return lambda body: body.uint(size)


def _numbers(count: int) -> Callable[[BodyReader], tuple[int, ...]]:
    return lambda body: tuple(body.uint(2) for _ in range(count))


_READERS: dict[int, tuple[str, Callable[[BodyReader], Any]]] = {
    0: ("flags2", _number(4)),
    1: ("sql_mode", _number(8)),
    2: ("catalog", _read_old_catalog),
    3: ("auto_increment", _numbers(2)),
    4: ("charsets", _numbers(3)),
    5: ("time_zone", lambda body: body.text(body.uint(1))),
    6: ("catalog", lambda body: body.take(body.uint(1))),
    7: ("lc_time_names", _number(2)),
    8: ("charset_database", _number(2)),
    9: ("table_map_for_update", _number(8)),
    10: ("master_data_written", _number(4)),
    11: ("invoker", _read_pair),
    12: ("updated_schemas", _read_schemas),
    13: ("microseconds", _number(3)),
    16: ("explicit_defaults_ts", _number(1)),
    17: ("ddl_xid", _number(8)),
    18: ("default_collation_utf8mb4", _number(2)),
    19: ("sql_require_primary_key", _number(1)),
    20: ("default_table_encryption", _number(1)),
    21: ("mysql_code_21", _number(1)),
    128: ("mariadb_hrnow_us", _number(3)),
    129: ("mariadb_xid", _number(8)),
    130: ("mariadb_gtid_flags3", _read_flags3),
    131: ("mariadb_collations", _read_collations),
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
        found[name] = read(body)
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


@dataclass(frozen=True, slots=True)
class RowsQuery:
    """The statement that the rows after it come from; for people only."""

    statement: bytes

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "ROWS_QUERY")
        body.take(1)  # A length that is useless above 255.
        return cls(body.rest())


@dataclass(frozen=True, slots=True)
class IntVar:
    """LAST_INSERT_ID (1) or INSERT_ID (2) of the next statement."""

    kind: int
    value: int

    @classmethod
    def decode(cls, data: bytes) -> Self:
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
        body = BodyReader(data, "USER_VAR")
        name = body.take(body.uint(4))
        return cls(name, None if body.uint(1) else body.rest())

    def encode(self) -> bytes:
        value = b"\1" if self.value is None else b"\0" + self.value
        return pack_uint(len(self.name), 4) + self.name + value

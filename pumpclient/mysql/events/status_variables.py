"""The status variables of a QUERY: the session that its statement ran under.

Each is a code of one byte and a value whose length only the code tells, so that an unknown code
makes everything behind it unreadable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pumpclient.mysql.events.field_reader import BodyReader, pack_uint

_MANY_SCHEMAS = 254
"""This many updated schemas stands for: too many to be named."""


@dataclass(frozen=True, slots=True)
class StatusVariables:
    """The session of a QUERY; None for what its server did not tell."""

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
    """What MySQL 9 writes with statements that change rows; it has no public name."""
    mariadb_hrnow_us: int | None = None
    mariadb_xid: int | None = None
    mariadb_gtid_flags3: tuple[int, int] | None = None
    """What MariaDB says besides, and of an ALTER's second phase the first one's number, else 0."""
    mariadb_collations: tuple[tuple[int, int], ...] | None = None
    """character_set_collations: of a charset's own collation and the one that it has instead."""


def _short(data: bytes) -> bytes:
    return pack_uint(len(data), 1) + data


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


def _write_schemas(names: tuple[bytes, ...]) -> bytes:
    if not names:
        return bytes([_MANY_SCHEMAS])
    return bytes([len(names)]) + b"".join(name + b"\0" for name in names)


def _read_collations(body: BodyReader) -> tuple[tuple[int, int], ...]:
    return tuple((body.uint(2), body.uint(2)) for _ in range(body.uint(1)))


def _write_collations(pairs: tuple[tuple[int, int], ...]) -> bytes:
    return bytes([len(pairs)]) + b"".join(pack_uint(n, 2) for pair in pairs for n in pair)


def _read_old_catalog(body: BodyReader) -> bytes:
    name = body.take(body.uint(1))
    body.take(1)
    return name


@dataclass(frozen=True, slots=True)
class _Form:
    """How one variable is stored."""

    name: str
    read: Callable[[BodyReader], Any]
    write: Callable[[Any], bytes]


ALTER_BEGINS, ALTER_COMMITS, ALTER_IS_UNDONE = 2, 4, 8
"""The phases of an ALTER under `binlog_alter_two_phase`, in MariaDB's flags."""


def _read_flags3(body: BodyReader) -> tuple[int, int]:
    flags = body.uint(1)
    return flags, body.uint(8) if flags & (ALTER_COMMITS | ALTER_IS_UNDONE) else 0


def _write_flags3(told: tuple[int, int]) -> bytes:
    flags, number = told
    has_number = flags & (ALTER_COMMITS | ALTER_IS_UNDONE)
    return pack_uint(flags, 1) + (pack_uint(number, 8) if has_number else b"")


def _number(name: str, size: int) -> _Form:
    return _Form(name, lambda body: body.uint(size), lambda value: pack_uint(value, size))


def _numbers(name: str, count: int) -> _Form:
    return _Form(
        name,
        lambda body: tuple(body.uint(2) for _ in range(count)),
        lambda values: b"".join(pack_uint(value, 2) for value in values),
    )


_FORMS = {
    0: _number("flags2", 4),
    1: _number("sql_mode", 8),
    2: _Form("catalog", _read_old_catalog, lambda name: _short(name) + b"\0"),
    3: _numbers("auto_increment", 2),
    4: _numbers("charsets", 3),
    5: _Form("time_zone", lambda b: b.text(b.uint(1)), lambda zone: _short(zone.encode())),
    6: _Form("catalog", lambda body: body.take(body.uint(1)), _short),
    7: _number("lc_time_names", 2),
    8: _number("charset_database", 2),
    9: _number("table_map_for_update", 8),
    10: _number("master_data_written", 4),
    11: _Form("invoker", _read_pair, lambda pair: _short(pair[0]) + _short(pair[1])),
    12: _Form("updated_schemas", _read_schemas, _write_schemas),
    13: _number("microseconds", 3),
    16: _number("explicit_defaults_ts", 1),
    17: _number("ddl_xid", 8),
    18: _number("default_collation_utf8mb4", 2),
    19: _number("sql_require_primary_key", 1),
    20: _number("default_table_encryption", 1),
    21: _number("mysql_code_21", 1),
    128: _number("mariadb_hrnow_us", 3),
    129: _number("mariadb_xid", 8),
    130: _Form("mariadb_gtid_flags3", _read_flags3, _write_flags3),
    131: _Form("mariadb_collations", _read_collations, _write_collations),
}


def decode_status(data: bytes) -> StatusVariables:
    """Read the variables; raise `Malformed` for an unknown code."""
    body = BodyReader(data, "QUERY status variables")
    found: dict[str, Any] = {}
    while body.left:
        code = body.uint(1)
        if code not in _FORMS:
            raise body.malformed(f"variable {code} is unknown")
        form = _FORMS[code]
        found[form.name] = form.read(body)
    return StatusVariables(**found)


def encode_status(variables: StatusVariables) -> bytes:
    """Return the bytes of all variables that are told."""
    written: dict[str, bytes] = {}
    for code, form in _FORMS.items():  # Of the two forms of a catalog the later, newer one stays.
        value = getattr(variables, form.name)
        if value is not None:
            written[form.name] = bytes([code]) + form.write(value)
    return b"".join(written.values())

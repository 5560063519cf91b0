"""TABLE_MAP: which table a number means until the statement ends, and how its rows lie.

    6   table id; 4 where its post-header length is 6
    2   flags
    1   length, the schema's name, a zero
    1   length, the table's name, a zero
    n   how many columns, length-encoded
    …   a type for each column (1)
    n   bytes of metadata, length-encoded; then 0 to 2 bytes for each column, see `columns`
    …   a bit for each column, lowest first: it may be NULL
    …   optional fields, see `optional`

A server repeats the same map, with another id, before each statement: `body[TABLE_ID_SIZE:]` is
what decoders are kept under.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from pumpclient.mysql.events.field_reader import BodyReader
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows.columns import (
    Column,
    metadata_size,
    read_metadata,
    wire_type,
)
from pumpclient.mysql.rows.optional import PrimaryKey, read_optional

TABLE_ID_SIZE = 6
NO_TABLE = 0xFFFFFF
"""The table id of rows events that only end a statement."""


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table's number and the layout of its rows."""

    table_id: int
    schema: str
    table: str
    columns: tuple[Column, ...]
    primary_key: PrimaryKey | None = None
    flavor: Flavor = Flavor.MYSQL
    flags: int = 0

    @classmethod
    def decode(cls, data: bytes, flavor: Flavor, *, id_size: int = TABLE_ID_SIZE) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        body = BodyReader(data, "TABLE_MAP")
        table_id, flags = body.uint(id_size), body.uint(2)
        schema, table = _name(body), _name(body)
        types = [wire_type(number) for number in body.take(body.packed())]
        metadata = BodyReader(body.take(body.packed()), "TABLE_MAP's metadata")
        nullable = body.take((len(types) + 7) // 8)
        columns = [
            Column(
                type_,
                read_metadata(type_, metadata.take(metadata_size(type_))),
                is_nullable=bool(nullable[n >> 3] >> (n & 7) & 1),
            )
            for n, type_ in enumerate(types)
        ]
        metadata.finish()
        columns, key = read_optional(body, columns, flavor)
        return cls(table_id, schema, table, tuple(columns), key, flavor, flags)

    @property
    def name(self) -> str:
        """Schema and table, as errors name it."""
        return f"{self.schema}.{self.table}"

    def completed(self, declared: Mapping[int, Mapping[str, Any]]) -> Self:
        """Return the map with what the table's definition says, by column index.

        A server that logs little (`binlog_row_metadata` MINIMAL or NO_LOG) leaves out signs,
        charsets, names and labels; none ever tells uuid, inet4 and inet6 from bytes. The keys are
        fields of `Column`; what is given overrules what the server told.
        """
        columns = [
            replace(column, **declared[n]) if n in declared else column
            for n, column in enumerate(self.columns)
        ]
        return replace(self, columns=tuple(columns))


def names_of(body: bytes, id_size: int = TABLE_ID_SIZE) -> tuple[str, str]:
    """Return schema and table of a body, whether or not the rest of it can be decoded."""
    reader = BodyReader(body, "TABLE_MAP", at=id_size + 2)
    return _name(reader), _name(reader)


def _name(body: BodyReader) -> str:
    name = body.text(body.uint(1))
    if body.uint(1):
        raise body.malformed(f"name {name!r} does not end with a zero")
    return name

"""Destination: a table's topic, a message's key, and the choice of its partition.

    to = "shop.db.item/1342177280"      a topic, and a hash: the partition is the hash modulo
                                        the number of partitions
    to = "shop.db.item/ts"              a topic; the hash is that of the commit_ts

    partition   hash of               so that
    ---------   -------------------   ------------------------------------------------------------
    table       schema and table      all changes of a table are in the order of its commits
    key         the message's key     all changes of a row are, and topics with equal keys are
                                      partitioned alike; tables without a key go by table
    ts          commit_ts             the rows of a transaction that go to a topic are together
    one         -                     all messages of a topic are together: partition 0

The hash is that of Kafka's own clients, a murmur2 without its sign. Source: Utils.murmur2 of Apache
Kafka, and the public-domain algorithm by Austin Appleby.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from drainer.task.events.messages import WHOLE, Headers
from drainer.task.sql.rows import apply_key, normal_value
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnInfo, DdlJob, TableInfo

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange

BY_TABLE, BY_KEY, BY_TS, ONE = "table", "key", "ts", "one"

TOPIC_BYTES_MAX = 249
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")
_SEED, _M, _U32 = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


def ddl_jobs(change: SchemaChange) -> list[DdlJob]:
    """Return the job of a DDL; for a DROP of several tables, one job for each table."""
    # Imported here, because a Spark task has no DDL.
    from penstock.ddl.catalog import table_by_table

    return [part.job for part in table_by_table(change)]


def murmur2(data: bytes) -> int:
    """Return the hash as a number of 31 bits."""
    h = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _U32
        k = (k ^ k >> 24) * _M & _U32
        h = (h * _M & _U32) ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _U32
    h = (h ^ h >> 13) * _M & _U32
    return (h ^ h >> 15) & 0x7FFFFFFF


class KeyColumn(NamedTuple):
    """A column of a table's row key, and its position in a row."""

    at: int
    column: ColumnInfo

    def value(self, row: tuple[Any, ...]) -> Any:
        return normal_value(self.column, row[self.at])


class Destination(NamedTuple):
    """The destination of a table's messages."""

    topic: str
    default: str
    """Topic and hash if the key does not choose."""
    key: tuple[KeyColumn, ...]
    """Empty for a table without a row key."""
    goes_by_key: bool

    def to(self, key: bytes | None) -> str:
        if key is None or not self.goes_by_key:
            return self.default
        return f"{self.topic}/{murmur2(key)}"

    def moves(self, before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
        return any(each.value(before) != each.value(after) for each in self.key)


class Limit(NamedTuple):
    """The rule for a message that is too large: send its key, with or without the full message."""

    bytes_max: int = 0
    """The largest message; 0: no limit."""
    keeps_whole: bool = False

    def headers(self, whole: bytes) -> Headers:
        return ((WHOLE, whole),) if self.keeps_whole else ()


NO_LIMIT = Limit()


class Destinations:
    """The rules of an output: `topic` is a template with {prefix}, {schema} and {table}."""

    def __init__(self, *, prefix: str, topic: str, partition: str) -> None:
        self._prefix = prefix
        self._topic = topic
        self._partition = partition

    def topic(self, schema: str, table: str) -> str:
        """Return a table's topic; raise `NeedsOperator` for an invalid topic name."""
        names = {"prefix": self._prefix, "schema": schema, "table": table}
        return topic_name(self._topic.format(**names))

    def shared_by(self, schema: str, table: str) -> tuple[str, str]:
        """Return the names common to tables that the topic template intends to share a topic."""
        return schema * ("{schema}" in self._topic), table * ("{table}" in self._topic)

    def of(self, schema: str, table: TableInfo) -> Destination:
        """Return a table's destination; raise `NeedsOperator` for an invalid topic name."""
        topic = self.topic(schema, table.name)
        index = apply_key(table)
        parts = () if index is None else index.columns
        key = tuple(KeyColumn(part.offset, table.columns[part.offset]) for part in parts)
        by_table = str(murmur2(f"{schema}.{table.name}".encode()))
        chosen = {ONE: "0", BY_TS: BY_TS}.get(self._partition, by_table)
        return Destination(topic, f"{topic}/{chosen}", key, self._partition == BY_KEY and bool(key))

    @property
    def ddl(self) -> str:
        """The destination of DDL and watermarks."""
        return f"{topic_name(f'{self._prefix}.ddl')}/0"

    @property
    def transactions(self) -> str:
        """The destination of the begin and end messages of transactions."""
        return f"{topic_name(f'{self._prefix}.transaction')}/0"


def topic_name(text: str) -> str:
    """Return `text` as a topic name; raise `NeedsOperator` if it is too long."""
    name = _UNFIT.sub("_", text)
    if not 0 < len(name) <= TOPIC_BYTES_MAX or name in (".", ".."):
        raise NeedsOperator(
            f"{name!r} cannot be the name of a topic",
            f"names have up to {TOPIC_BYTES_MAX} characters: choose another topic or prefix in"
            " the sink's URL, or route the table to a shorter name",
            Code.KAFKA_TOPIC,
        )
    return name


def topic_of(to: str) -> str:
    return to.partition("/")[0]


def hash_of(to: str, commit_ts: int) -> int:
    chosen = to.partition("/")[2]
    return murmur2(b"%d" % commit_ts) if chosen == BY_TS else int(chosen)

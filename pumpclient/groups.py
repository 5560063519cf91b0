"""What a group of transactions is made of, and what remembers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.codec import encode_binlog, encode_prewrite_value
from penstock.errors import Retryable
from penstock.model import Binlog, BinlogType, Origin, PrewriteValue
from pumpclient.changes import ChangeSet
from pumpclient.large import LargePrewrite
from pumpclient.rows import Table
from pumpclient.session import Session


class GroupJournal(Protocol):
    """Remembers, on a disk, which transactions may be open on which Pump."""

    def begin(self, node_id: str, start_ts: range) -> None:
        """Note a group before its Prewrites are sent; durable when this returns."""

    def decide(self, start_ts: range, commit_ts: range) -> None:
        """Note that a group is to be committed, before its first Commit is sent; durable, too."""

    def end(self, start_ts: range) -> None:
        """Note that a group is settled."""


@dataclass(slots=True)
class Pending:
    """One transaction to be committed."""

    changes: ChangeSet
    origin: Origin


def carry_over(session: Session, changes: ChangeSet) -> None:
    """Encode again what another version of its table has become since."""
    carried: dict[int, Table] = {}
    for table_id, each in changes.tables.items():
        now = session.schemas.table_by_id(table_id)
        if now is None:
            table = each.table
            raise Retryable(f"table {table.schema_name}.{table.info.name} was dropped meanwhile")
        if now is not each.table:
            carried[table_id] = now
    if carried:
        changes.carry_over(carried)


def prewrite_payload(each: Pending, start_ts: int, version: int) -> bytes | LargePrewrite:
    """Return a transaction's Prewrite; in pieces when its rows wait in a file."""
    spilled = each.changes.spill_all() if each.changes.spill is not None else None
    if spilled is None:
        value = each.changes.value(version)
    else:
        value = encode_prewrite_value(PrewriteValue(schema_version=version))
    prewrite = Binlog(
        tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=value, origin=each.origin
    )
    if spilled is not None:
        return LargePrewrite(prewrite, spilled)
    return encode_binlog(prewrite)

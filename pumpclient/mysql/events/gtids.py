"""The events that carry MySQL's GTIDs.

GTID, and ANONYMOUS_GTID with a uuid of zeros:

    1   flags: 1 the transaction may hold statements
    16  server uuid
    8   transaction number
    1   2: a logical clock follows
    8   last_committed
    8   sequence number
    7   commit time where it was just committed, µs; bit 55: the next field is there
    7   commit time where it was committed first
    n   bytes of the whole transaction, a length-encoded number
    4   version of the server that just committed it; bit 31: the next field is there
    4   version of the server that committed it first
    8   ticket of the commit group

Servers before 8.0 end after the sequence number, those before 8.2 before the ticket. PREVIOUS_GTIDS
is a set as in `pumpclient.mysql.gtid.sids`. GTID_TAGGED is in `tagged.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from pumpclient.mysql.events.field_reader import BodyReader, pack_number, pack_uint
from pumpclient.mysql.gtid import MysqlGtid, MysqlGtidSet
from pumpclient.mysql.gtid.sids import decode_sids, encode_sids

_LOGICAL_CLOCK = 2
_ORIGINAL_TIME = 1 << 55
_ORIGINAL_VERSION = 1 << 31
NO_UUID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """What servers since 8.0 say of a transaction's commit."""

    immediate_us: int
    original_us: int
    transaction_bytes: int
    immediate_version: int
    original_version: int
    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class Gtid:
    """The beginning of a transaction; `gtid` is None in ANONYMOUS_GTID."""

    gtid: MysqlGtid | None
    flags: int = 0
    last_committed: int = 0
    sequence: int = 0
    commit: CommitInfo | None = None

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        body = BodyReader(data, "GTID")
        flags, source, number = body.uint(1), UUID(bytes=body.take(16)), body.uint(8)
        gtid = None if source == NO_UUID and number == 0 else MysqlGtid(source, number)
        if not body.left:
            return cls(gtid, flags)
        if body.uint(1) != _LOGICAL_CLOCK:
            raise body.malformed("a logical clock of an unknown kind")
        clock = body.uint(8), body.uint(8)
        return cls(gtid, flags, *clock, _decode_commit(body) if body.left else None)

    def encode(self) -> bytes:
        """Return the body."""
        source, number = (self.gtid.source, self.gtid.number) if self.gtid else (NO_UUID, 0)
        fixed = [
            bytes([self.flags]),
            source.bytes,
            pack_uint(number, 8),
            bytes([_LOGICAL_CLOCK]),
            pack_uint(self.last_committed, 8),
            pack_uint(self.sequence, 8),
        ]
        return b"".join([*fixed, _encode_commit(self.commit) if self.commit else b""])


def _decode_commit(body: BodyReader) -> CommitInfo:
    immediate_us = body.uint(7)
    original_us = immediate_us & ~_ORIGINAL_TIME
    if immediate_us & _ORIGINAL_TIME:
        immediate_us, original_us = original_us, body.uint(7)
    size = body.packed() if body.left else 0
    immediate = body.uint(4) if body.left else 0
    original = immediate & ~_ORIGINAL_VERSION
    if immediate & _ORIGINAL_VERSION:
        immediate, original = original, body.uint(4)
    ticket = body.uint(8) if body.left else None
    body.finish()
    return CommitInfo(immediate_us, original_us, size, immediate, original, ticket)


def _encode_commit(commit: CommitInfo) -> bytes:
    if commit.original_us == commit.immediate_us:
        times = pack_uint(commit.immediate_us, 7)
    else:
        times = pack_uint(commit.immediate_us | _ORIGINAL_TIME, 7) + pack_uint(
            commit.original_us, 7
        )
    if commit.original_version == commit.immediate_version:
        versions = pack_uint(commit.immediate_version, 4)
    else:
        versions = pack_uint(commit.immediate_version | _ORIGINAL_VERSION, 4)
        versions += pack_uint(commit.original_version, 4)
    ticket = b"" if commit.ticket is None else pack_uint(commit.ticket, 8)
    return times + pack_number(commit.transaction_bytes) + versions + ticket


@dataclass(frozen=True, slots=True)
class PreviousGtids:
    """What all earlier files hold."""

    gtids: MysqlGtidSet = field(default_factory=MysqlGtidSet)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        return cls(decode_sids(data))

    def encode(self) -> bytes:
        """Return the body."""
        return encode_sids(self.gtids)

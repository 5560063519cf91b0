"""The events that only MariaDB writes.

MARIADB_GTID, the beginning of a transaction, its server being the header's:

    8   sequence number
    4   domain
    1   flags
    8   commit id, with flag GROUP_COMMIT
    4   format, 1 bytes of gtrid, 1 bytes of bqual, then both, with PREPARED_XA or COMPLETED_XA
    n   flags of newer servers, or zeros up to 19 bytes in all

GTID_LIST, the state of all earlier files: 4 bytes, of which the low 28 bits count, then domain 4,
server 4 and sequence number 8 for each. BINLOG_CHECKPOINT: 4 bytes, then the name of the oldest
file that crash recovery needs. START_ENCRYPTION: scheme 1, key version 4, nonce 12; what a server
sends over the network is decrypted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntFlag
from typing import NamedTuple, Self

from pumpclient.mysql.events.field_reader import BodyReader, pack_uint
from pumpclient.mysql.events.transactions import XaId
from pumpclient.mysql.gtid import MariadbGtid, MariadbGtidSet

_GTID_HEAD = struct.Struct("<QIB")
_GTID_EVENT = struct.Struct("<5xI10xQIB")  # The header's server before it.
GTID_EVENT_SIZE_MIN = _GTID_EVENT.size
_GTID_SIZE = 19
_COUNT_BITS = 28


class GtidFlag(IntFlag):
    """What MariaDB says of a transaction in its GTID."""

    STANDALONE = (
        1  # Exactly one event follows, usually a DDL; otherwise XID, COMMIT or ROLLBACK ends.
    )
    GROUP_COMMIT = 2
    TRANSACTIONAL = 4
    ALLOW_PARALLEL = 8
    WAITED = 16
    DDL = 32
    PREPARED_XA = 64
    COMPLETED_XA = 128


# Plain numbers: an IntFlag's own `&` takes a microsecond, and these are in every transaction.
_STANDALONE = int(GtidFlag.STANDALONE)
_GROUP_COMMIT = int(GtidFlag.GROUP_COMMIT)
_XA = int(GtidFlag.PREPARED_XA | GtidFlag.COMPLETED_XA)
_LONGER = _GROUP_COMMIT | _XA


class MariadbGtidEvent(NamedTuple):
    """The beginning of a transaction of MariaDB."""

    sequence: int
    domain: int
    flags: int
    commit_id: int | None = None
    xid: XaId | None = None
    rest: bytes = b""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        if len(data) < _GTID_HEAD.size:
            raise BodyReader(data, "MARIADB_GTID").malformed(f"{len(data)} bytes")
        sequence, domain, flags = _GTID_HEAD.unpack_from(data)
        if not flags & _LONGER:
            rest = data[_GTID_HEAD.size :]
            return tuple.__new__(cls, (sequence, domain, flags, None, None, rest))
        body = BodyReader(data, "MARIADB_GTID", at=_GTID_HEAD.size)
        commit_id = body.uint(8) if flags & _GROUP_COMMIT else None
        xid = None
        if flags & _XA:
            format_, global_size, branch_size = body.uint(4), body.uint(1), body.uint(1)
            xid = XaId(format_, body.take(global_size), body.take(branch_size))
        return cls(sequence, domain, flags, commit_id, xid, body.rest())

    def encode(self) -> bytes:
        """Return the body."""
        parts = [pack_uint(self.sequence, 8), pack_uint(self.domain, 4), bytes([self.flags])]
        if self.commit_id is not None:
            parts.append(pack_uint(self.commit_id, 8))
        if self.xid is not None:
            parts.append(pack_uint(self.xid.format, 4))
            parts.append(bytes([len(self.xid.global_id), len(self.xid.branch)]))
            parts += [self.xid.global_id, self.xid.branch]
        return b"".join([*parts, self.rest])

    def gtid(self, server: int) -> MariadbGtid:
        """Return the id, with the server of the event's header."""
        return MariadbGtid(self.domain, server, self.sequence)

    @property
    def is_standalone(self) -> bool:
        """Tell whether the next event is the whole transaction."""
        return bool(self.flags & _STANDALONE)


def read_begin(event: bytes) -> tuple[str, int]:
    """Return a whole MARIADB_GTID's id as text, and its flags: what most readers want of it."""
    server, sequence, domain, flags = _GTID_EVENT.unpack_from(event)
    return f"{domain}-{server}-{sequence}", flags


def begin_mariadb(gtid: MariadbGtid, flags: GtidFlag = GtidFlag.TRANSACTIONAL) -> MariadbGtidEvent:
    """Return the event that begins a plain transaction."""
    padding = bytes(_GTID_SIZE - 13)
    return MariadbGtidEvent(gtid.sequence, gtid.domain, flags, rest=padding)


@dataclass(frozen=True, slots=True)
class GtidList:
    """What all earlier files hold: the last id of each domain and server."""

    gtids: MariadbGtidSet = field(default_factory=MariadbGtidSet)
    flags: int = 0

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        body = BodyReader(data, "GTID_LIST")
        flags, count = divmod(body.uint(4), 1 << _COUNT_BITS)
        found = [MariadbGtid(body.uint(4), body.uint(4), body.uint(8)) for _ in range(count)]
        # A list without entries is padded to the size of an entry's head.
        if count:
            body.finish()
        return cls(MariadbGtidSet(found), flags)

    def encode(self) -> bytes:
        """Return the body."""
        entries = list(self.gtids)
        parts = [pack_uint(self.flags << _COUNT_BITS | len(entries), 4)]
        for gtid in entries:
            parts += [pack_uint(gtid.domain, 4), pack_uint(gtid.server, 4)]
            parts.append(pack_uint(gtid.sequence, 8))
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class BinlogCheckpoint:
    """The oldest file that the server's crash recovery may need."""

    file: str

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        body = BodyReader(data, "BINLOG_CHECKPOINT")
        event = cls(body.text(body.uint(4)))
        body.finish()
        return event

    def encode(self) -> bytes:
        """Return the body."""
        name = self.file.encode()
        return pack_uint(len(name), 4) + name


@dataclass(frozen=True, slots=True)
class StartEncryption:
    """What follows in the file is encrypted; a stream is not."""

    scheme: int
    key_version: int
    nonce: bytes

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        body = BodyReader(data, "START_ENCRYPTION")
        event = cls(body.uint(1), body.uint(4), body.take(12))
        body.finish()
        return event

    def encode(self) -> bytes:
        """Return the body."""
        return bytes([self.scheme]) + pack_uint(self.key_version, 4) + self.nonce

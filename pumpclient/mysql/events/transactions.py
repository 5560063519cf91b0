"""The events that begin and end transactions, but for the GTIDs.

XID          8  number: an InnoDB transaction is committed
XA_PREPARE   1  committed at once, in one phase
             4  format, 4 bytes of gtrid, 4 bytes of bqual, then both
ROTATE       8  position in the next file, then its name
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pumpclient.mysql.events.field_reader import BodyReader, pack_uint

_XID_SIZE = 8
_XID_PART_MAX = 64


@dataclass(frozen=True, slots=True)
class Xid:
    """The end of a transaction of a transactional engine."""

    number: int

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        if len(data) != _XID_SIZE:
            raise BodyReader(data, "XID").malformed(f"{len(data)} bytes")
        return cls(int.from_bytes(data, "little"))

    def encode(self) -> bytes:
        """Return the body."""
        return pack_uint(self.number, _XID_SIZE)


@dataclass(frozen=True, slots=True)
class XaId:
    """A distributed transaction's name."""

    format: int
    global_id: bytes
    branch: bytes

    def __str__(self) -> str:
        """Return the name as `XA COMMIT` takes it."""
        return f"X'{self.global_id.hex()}',X'{self.branch.hex()}',{self.format}"


@dataclass(frozen=True, slots=True)
class XaPrepare:
    """The end of what an XA transaction changed; `one_phase`: and its commit."""

    one_phase: bool
    xid: XaId

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        body = BodyReader(data, "XA_PREPARE")
        one_phase = bool(body.uint(1))
        format_, global_size, branch_size = body.uint(4), body.uint(4), body.uint(4)
        if global_size > _XID_PART_MAX or branch_size > _XID_PART_MAX:
            raise body.malformed(f"parts of {global_size} and {branch_size} bytes")
        event = cls(one_phase, XaId(format_, body.take(global_size), body.take(branch_size)))
        body.finish()
        return event

    def encode(self) -> bytes:
        """Return the body."""
        return b"".join(
            [
                bytes([self.one_phase]),
                pack_uint(self.xid.format, 4),
                pack_uint(len(self.xid.global_id), 4),
                pack_uint(len(self.xid.branch), 4),
                self.xid.global_id,
                self.xid.branch,
            ]
        )


@dataclass(frozen=True, slots=True)
class Rotate:
    """The file goes on in another; an artificial one says which file a stream is in."""

    position: int
    file: str

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; raise `Malformed` when it is none."""
        body = BodyReader(data, "ROTATE")
        return cls(body.uint(8), body.text(body.left))

    def encode(self) -> bytes:
        """Return the body."""
        return pack_uint(self.position, 8) + self.file.encode()

"""Compressed events: blocks within MariaDB's events, and MySQL's complete transactions.

MariaDB's block (log_bin_compress), in place of a statement or of the rows' images:

    1   0x80 | algorithm << 4 | n     algorithm 0 is zlib; n is 1 to 4
    n   bytes when uncompressed, big-endian
    …   the zlib stream

MySQL's TRANSACTION_PAYLOAD (binlog_transaction_compression): fields of number, length and value,
all length-encoded, ended by number 0 alone; then the payload: whole events without checksums.

    1   bytes of the payload
    2   compression: 0 zstd, 255 none
    3   bytes when uncompressed
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import zstandard

from penstock.codes import Code
from penstock.errors import Malformed
from pumpclient.mysql.events.field_reader import BodyReader
from pumpclient.mysql.events.frame import HEADER_SIZE, read_header

_BLOCK_MARK, _ALGORITHM_BITS, _LENGTH_BITS = 0x80, 0x70, 0x07
_END_FIELD, _SIZE_FIELD, _COMPRESSION_FIELD, _PLAIN_SIZE_FIELD = range(4)
_PIECE_BYTES = 1 << 20
_HINT = "bytes of the event are lost, or it is compressed in a way that is unknown here"


def decompress_block(data: bytes | memoryview) -> bytes:
    """Decompress a MariaDB block; raise `Malformed` if it is not valid."""
    if not data or not data[0] & _BLOCK_MARK or data[0] & _ALGORITHM_BITS:
        raise Malformed(
            f"a compressed block that begins with {bytes(data[:1])!r}",
            hint=_HINT,
            code=Code.EVENT_MALFORMED,
        )
    length_size = data[0] & _LENGTH_BITS
    length = int.from_bytes(data[1 : 1 + length_size], "big")
    unpacking = zlib.decompressobj()
    try:
        plain = unpacking.decompress(data[1 + length_size :], length + 1)
    except zlib.error as error:
        raise Malformed(
            f"a damaged compressed block: {error}", hint=_HINT, code=Code.EVENT_MALFORMED
        ) from error
    if len(plain) != length or not unpacking.eof:
        raise Malformed(
            f"a compressed block is not of the {length} bytes it promises",
            hint=_HINT,
            code=Code.EVENT_MALFORMED,
        )
    return plain


class Compression(IntEnum):
    """How the payload of a transaction is stored."""

    ZSTD = 0
    NONE = 255


@dataclass(frozen=True, slots=True)
class TransactionPayload:
    """All events of a transaction except its GTID, in one event."""

    compression: Compression
    payload: bytes
    plain_bytes: int

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = BodyReader(data, "TRANSACTION_PAYLOAD")
        fields: dict[int, int] = {}
        while (number := body.packed()) != _END_FIELD:
            value = BodyReader(body.take(body.packed()), "TRANSACTION_PAYLOAD")
            fields[number] = value.packed()
        kind = fields.get(_COMPRESSION_FIELD, Compression.NONE)
        if kind not in list(Compression):
            raise body.malformed(f"compression {kind} is unknown")
        payload = body.take(fields.get(_SIZE_FIELD, body.left))
        body.finish()
        return cls(Compression(kind), payload, fields.get(_PLAIN_SIZE_FIELD, len(payload)))

    def events(self) -> Iterator[bytes]:
        """Yield the events one by one; at most one event, and a MiB, is in memory.

        Raises `Malformed` when the payload is damaged or does not have its declared length.
        """
        waiting = bytearray()
        total = 0
        for piece in self._pieces():
            waiting += piece
            total += len(piece)
            at = 0
            while len(waiting) - at >= HEADER_SIZE:
                size = read_header(waiting, at).size  # type: ignore[arg-type]
                if len(waiting) - at < size:
                    break
                yield bytes(waiting[at : at + size])
                at += size
            del waiting[:at]
        if waiting or total != self.plain_bytes:
            problem = f"{total} bytes in a transaction payload of {self.plain_bytes}"
            raise Malformed(
                f"{problem}, {len(waiting)} after its last event",
                hint=_HINT,
                code=Code.EVENT_MALFORMED,
            )

    def _pieces(self) -> Iterator[bytes]:
        if self.compression is Compression.NONE:
            yield self.payload
            return
        unpacking = zstandard.ZstdDecompressor().stream_reader(self.payload)
        try:
            while piece := unpacking.read(_PIECE_BYTES):
                yield piece
        except zstandard.ZstdError as error:
            raise Malformed(
                f"a damaged transaction payload: {error}", hint=_HINT, code=Code.EVENT_MALFORMED
            ) from error

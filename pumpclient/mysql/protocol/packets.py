"""The commands of a replica, and the packets of the stream that answers them.

    COM_REGISTER_SLAVE    15 | server id 4 | 1 + host | 1 + user | 1 + password | port 2 | 0 4 | 0 4
    COM_BINLOG_DUMP       12 | position 4 | flags 2 | server id 4 | file
    COM_BINLOG_DUMP_GTID  1e | flags 2 | server id 4 | 4 + file | position 8 | 4 + GTID set

(numbers in hexadecimal, little-endian; n + x is a length in n bytes before x). The stream:

    event    00 | with semi-sync: ef, 1 when an acknowledgement is requested | event
    error    ff | code 2 | # | state 5 | message
    end      fe, in fewer than 9 bytes
    ACK      ef | position 8 | file

A packet is 3 bytes of length, 1 of sequence, payload; 0xffffff bytes continue in the next packet.
"""

from __future__ import annotations

import struct
from enum import IntFlag

from penstock.codes import Code
from penstock.errors import Retryable
from pumpclient.mysql.gtid import MysqlGtidSet, encode_sids
from pumpclient.mysql.protocol.refusals import refusal

FULL_PACKET = 0xFFFFFF
_HEAD = struct.Struct("<I")
_ERROR = struct.Struct("<H")
_SEMI_SYNC = 0xEF
_OK, _EOF, _ERR = 0x00, 0xFE, 0xFF
_EOF_SIZE_END = 9
_POSITION_END = 1 << 32


class DumpFlag(IntFlag):
    """Flags of the dump commands."""

    NON_BLOCK = 0x01  # End after the last event instead of waiting for more.
    SEND_ANNOTATE = 0x02  # MariaDB: without it ANNOTATE_ROWS are omitted, and files have holes.
    THROUGH_GTID = 0x04  # MySQL: start by the GTID set.


def register_replica(server_id: int, host: str = "") -> bytes:
    """Return COM_REGISTER_SLAVE; `host` is what SHOW REPLICAS shows."""
    name = host.encode()[:60]
    fixed = struct.pack("<BIB", 0x15, server_id, len(name))
    return fixed + name + struct.pack("<BBHII", 0, 0, 0, 0, 0)


def dump_from_position(server_id: int, file: str, position: int, flags: int = 0) -> bytes:
    """Return COM_BINLOG_DUMP; an empty `file` is the first, or MariaDB's start by GTID."""
    assert position < _POSITION_END, "the command has four bytes for it"
    return struct.pack("<BIHI", 0x12, position, flags, server_id) + file.encode()


def dump_from_gtids(server_id: int, gtids: MysqlGtidSet, flags: int = 0) -> bytes:
    """Return MySQL's COM_BINLOG_DUMP_GTID: everything that `gtids` does not hold."""
    data = encode_sids(gtids)
    head = struct.pack("<BHII", 0x1E, flags | DumpFlag.THROUGH_GTID, server_id, 0)
    return head + struct.pack("<QI", 4, len(data)) + data


def acknowledge(file: str, position: int) -> bytes:
    """Return the semi-sync packet that reports everything up to here as on disk."""
    payload = struct.pack("<BQ", _SEMI_SYNC, position) + file.encode()
    return _HEAD.pack(len(payload)) + payload


class PacketReader:
    """Splits received bytes into events; bytes of an incomplete packet wait for the rest."""

    def __init__(self, *, semi_sync: bool) -> None:
        """Start with the answer to a command, which has sequence number 1."""
        self._left = b""
        self._pieces: list[bytes] = []
        self._sequence = 1
        self._semi_sync = semi_sync
        self.ack_wanted = False
        self.is_ended = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are complete with `data`.

        Raises the error that `refusal` makes of an error packet once the events before it were
        returned, and `Retryable` when packets are lost.
        """
        data = self._left + data if self._left else data
        self._left = b""
        events: list[bytes] = []
        at, end, sequence = 0, len(data), self._sequence
        is_plain = not self._semi_sync
        while end - at >= 4:
            (head,) = _HEAD.unpack_from(data, at)
            size = head & FULL_PACKET
            stop = at + 4 + size
            if stop > end:
                break
            if head >> 24 != sequence:
                sequence = self._resequence(head >> 24, sequence)
            if is_plain and size < FULL_PACKET and not self._pieces and size and not data[at + 4]:
                events.append(data[at + 5 : stop])
            elif not self._take(data[at + 4 : stop], events):
                self._left = data[at:]  # It is reported once the events before it are consumed.
                self._sequence = sequence
                return events
            at, sequence = stop, (sequence + 1) & 0xFF
        self._left, self._sequence = data[at:], sequence
        return events

    def _resequence(self, found: int, expected: int) -> int:
        # A caller that requests acknowledgements restarts at 1. An error at shutdown has 0.
        if found in (0, 1):
            return found
        raise Retryable(
            f"packet {found} of a dump where {expected} was due: packets are lost",
            code=Code.SERVER_AWAY,
        )

    def _take(self, payload: bytes, events: list[bytes]) -> bool:
        """Process a packet that is not a plain event; return False if it must wait."""
        if len(payload) == FULL_PACKET:
            self._pieces.append(payload)
            return True
        if self._pieces:
            payload = b"".join([*self._pieces, payload])
            self._pieces = []
        first = payload[0] if payload else _EOF
        if first == _OK:
            at = 1
            if self._semi_sync and payload[1] == _SEMI_SYNC:
                self.ack_wanted = self.ack_wanted or bool(payload[2])
                at = 3
            events.append(payload[at:])
            return True
        if events:
            return False
        if first == _EOF and len(payload) < _EOF_SIZE_END:
            self.is_ended = True
            return True
        raise error_of(payload)


def error_of(payload: bytes) -> Exception:
    if payload[:1] != bytes([_ERR]):
        return Retryable(f"a packet of a dump begins with {payload[:1]!r}", code=Code.SERVER_AWAY)
    (code,) = _ERROR.unpack_from(payload, 1)
    message = payload[9:] if payload[3:4] == b"#" else payload[3:]
    return refusal(code, message.decode("utf-8", "replace"))

"""ROTATE as a server makes it for a stream, before anybody knows whether events end in checksums.

The first event of a stream is a ROTATE that names its file, and the FORMAT_DESCRIPTION that tells
of checksums comes behind it. Whether this one has a checksum follows from its own last bytes.
"""

from __future__ import annotations

from pumpclient.mysql.events.frame import CHECKSUM_SIZE, HEADER_SIZE, Header, checksum_holds
from pumpclient.mysql.events.transactions import Rotate

_POSITION_SIZE = 8


def rotate_of(event: bytes) -> Rotate:
    """Return what a whole ROTATE says; raise `Malformed` when it is none."""
    shortest = HEADER_SIZE + _POSITION_SIZE + CHECKSUM_SIZE
    checked = len(event) > shortest and checksum_holds(event)
    return Rotate.decode(event[HEADER_SIZE : len(event) - CHECKSUM_SIZE * checked])


def is_fake(header: Header) -> bool:
    """Tell whether a ROTATE was made for the stream: it is in no file."""
    return header.is_artificial or header.timestamp_s == 0 or header.end_position == 0

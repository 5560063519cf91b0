"""The part of the volume that new transactions may not use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.errors import PenstockError
from penstock.files import Files
from penstock.model import BinlogType
from pump.record import OutOfSpace, Record

_RESERVE_BYTES_MAX = 10 << 30
_RESERVE_SHARE = 50


class Reserve:
    """Looks at the free space before every group; asking costs two microseconds."""

    def __init__(self, files: Files, folder: Path, reserve_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._reserve_bytes = reserve_bytes

    def space(self) -> tuple[int, int]:
        """Return the free bytes, and how many of them are the reserve."""
        free, total = self._files.space(self._folder)
        if self._reserve_bytes >= 0:
            return free, self._reserve_bytes
        return free, min(total // _RESERVE_SHARE, _RESERVE_BYTES_MAX)

    def check(self) -> None:
        """Raise `OutOfSpace` when new transactions are refused."""
        free, reserve = self.space()
        if free <= reserve:
            raise _out_of_space(free, reserve)

    def refused(self, records: Sequence[Record]) -> dict[int, PenstockError]:
        """Return the records refused, by index.

        Below the reserve these are the Prewrites. What ends a transaction is small, and without
        it the whole stream waits: it may use half of the reserve.
        """
        free, reserve = self.space()
        if free <= reserve // 2:
            return dict.fromkeys(range(len(records)), _out_of_space(free, reserve))
        if free > reserve:
            return {}
        prewrites = [i for i, record in enumerate(records) if record.tp == BinlogType.PREWRITE]
        return dict.fromkeys(prewrites, _out_of_space(free, reserve))


def _out_of_space(free: int, reserve: int) -> OutOfSpace:
    # Clients of the original know this text.
    return OutOfSpace(
        f"no available space, available: {free}, StopWriteAtAvailableSpace: {reserve}"
    )

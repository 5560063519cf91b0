"""Names and places in a relay log: files, sub-directories, locations, and their order."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple, Self

from penstock.errors import Malformed, NeedsOperator

INDEX_NAME = "server-uuid.index"
META_NAME = "relay.meta"
FIRST_POSITION = 4
"""Where the first event of a file begins, behind the file's magic."""

_FILE = re.compile(r"([^./|][^./|]*)\.(\d+)", re.ASCII)
_SUB_DIR = re.compile(r"([^/]+)\.(\d{6,})", re.ASCII)
_LOCATED = re.compile(r"([^./|]+)\|(\d{6,})\.(\d+):(\d+)", re.ASCII)
_FILE_HINT = "a binlog file is named base.number, as in mysql-bin.000001"
_INDEX_HINT = (
    "restore server-uuid.index, or move the relay log away and start again from a checkpoint"
)


class FileName(NamedTuple):
    """The name of a binlog file; ordered by its number, not by its text: 1000000 follows 999999."""

    base: str
    number: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the name that `text` is; raise `Malformed` when it is none."""
        found = _FILE.fullmatch(text)
        if found is None or int(found[2]) == 0:
            raise Malformed(f"{text!r} is no binlog file's name", hint=_FILE_HINT)
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        """Return the name as the server writes it."""
        return f"{self.base}.{self.number:06d}"


class SubDir(NamedTuple):
    """One server's directory: its uuid, and which one it is in the relay log, from 1 on."""

    uuid: str
    suffix: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the sub-directory that a line of the index names; raise `Malformed`."""
        found = _SUB_DIR.fullmatch(text)
        if found is None or int(found[2]) == 0:
            raise Malformed(f"{text!r} is no sub-directory of a relay log", hint=_INDEX_HINT)
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        """Return the directory's name."""
        return f"{self.uuid}.{self.suffix:06d}"

    def next(self, uuid: str) -> SubDir:
        """Return the sub-directory that follows, for a server with `uuid`."""
        return SubDir(uuid, self.suffix + 1)


class Location(NamedTuple):
    """A place in a relay log; ordered as its events are."""

    suffix: int
    file: FileName
    position: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the place that `text` names, as `str` writes it; raise `Malformed`."""
        found = _LOCATED.fullmatch(text)
        if found is None or int(found[2]) == 0 or int(found[3]) == 0:
            hint = "write it as mysql-bin|000001.000003:4, the sub-directory's number in between"
            raise Malformed(f"{text!r} is no place in a relay log", hint=hint)
        return cls(int(found[2]), FileName(found[1], int(found[3])), int(found[4]))

    def __str__(self) -> str:
        """Return `base|suffix.number:position`."""
        return f"{self.file.base}|{self.suffix:06d}.{self.file.number:06d}:{self.position}"

    def at(self, position: int) -> Location:
        """Return another place in the same file."""
        return Location(self.suffix, self.file, position)


def read_index(text: str) -> list[SubDir]:
    """Return the sub-directories that the index lists, oldest first.

    Raises `NeedsOperator` when their numbers do not follow each other: a line is lost.
    """
    listed = [SubDir.parse(line.strip()) for line in text.splitlines() if line.strip()]
    for earlier, later in pairwise(listed):
        if later.suffix != earlier.suffix + 1:
            raise NeedsOperator(
                f"{INDEX_NAME}: {later} does not follow {earlier}", hint=_INDEX_HINT
            )
    return listed


def write_index(listed: list[SubDir]) -> str:
    """Return the index's text."""
    return "".join(f"{sub_dir}\n" for sub_dir in listed)

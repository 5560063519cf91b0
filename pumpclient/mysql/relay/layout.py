"""The layout of a relay log: file and sub-directory names, places and their order, index, meta.

`server-uuid.index` lists the sub-directories. Each has a `relay.meta` with the end of the server's
binlog in it, from which a new stream starts:

    binlog-name = "mysql-bin.000011"
    binlog-pos = 4711
    binlog-gtid = "0-1-100"

It is saved after the data it refers to is on the disk, so it may lag behind the files and never
runs ahead of them. Index and meta are replaced atomically: a crash leaves the old or the new file.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator
from penstock.log.files import DRAFT, replace_file
from pumpclient.mysql.gtid import Flavor, GtidSet, parse_gtid_set

INDEX_NAME = "server-uuid.index"
META_NAME = "relay.meta"
FIRST_POSITION = 4
"""Where the first event of a file starts, after the file's magic."""

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
        """Parse a file name; raise `Malformed` if `text` is not one."""
        found = _FILE.fullmatch(text)
        if found is None or int(found[2]) == 0:
            raise Malformed(f"{text!r} is no binlog file's name", _FILE_HINT, Code.RELAY_UNUSABLE)
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"{self.base}.{self.number:06d}"


class SubDir(NamedTuple):
    """One server's directory: its uuid, and its number in the relay log, from 1 on."""

    uuid: str
    suffix: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a sub-directory from an index line; raise `Malformed`."""
        found = _SUB_DIR.fullmatch(text)
        if found is None or int(found[2]) == 0:
            raise Malformed(
                f"{text!r} is no sub-directory of a relay log", _INDEX_HINT, Code.RELAY_UNUSABLE
            )
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"{self.uuid}.{self.suffix:06d}"

    def next(self, uuid: str) -> SubDir:
        return SubDir(uuid, self.suffix + 1)


class Location(NamedTuple):
    """A place in a relay log; ordered as its events are."""

    suffix: int
    file: FileName
    position: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a location in the form that `str` writes; raise `Malformed`."""
        found = _LOCATED.fullmatch(text)
        if found is None or int(found[2]) == 0 or int(found[3]) == 0:
            hint = "write it as mysql-bin|000001.000003:4, the sub-directory's number in between"
            raise Malformed(f"{text!r} is no place in a relay log", hint, Code.RELAY_UNUSABLE)
        return cls(int(found[2]), FileName(found[1], int(found[3])), int(found[4]))

    def __str__(self) -> str:
        """Return `base|suffix.number:position`."""
        return f"{self.file.base}|{self.suffix:06d}.{self.file.number:06d}:{self.position}"

    def at(self, position: int) -> Location:
        return Location(self.suffix, self.file, position)


def read_index(text: str) -> list[SubDir]:
    """Return the sub-directories that the index lists, oldest first.

    Raises `NeedsOperator` when their numbers are not consecutive: a line is lost.
    """
    listed = [SubDir.parse(line.strip()) for line in text.splitlines() if line.strip()]
    for earlier, later in pairwise(listed):
        if later.suffix != earlier.suffix + 1:
            raise NeedsOperator(
                f"{INDEX_NAME}: {later} does not follow {earlier}", _INDEX_HINT, Code.RELAY_UNUSABLE
            )
    return listed


def write_index(listed: list[SubDir]) -> str:
    return "".join(f"{sub_dir}\n" for sub_dir in listed)


def sub_dirs_of(root: Path) -> list[SubDir]:
    index = root / INDEX_NAME
    return read_index(index.read_text()) if index.exists() else []


_KEYS = {"binlog-name": str, "binlog-pos": int, "binlog-gtid": str}


@dataclass(frozen=True, slots=True)
class Meta:
    """The content of relay.meta; an empty name means that nothing was relayed yet."""

    file: str
    position: int
    gtids: GtidSet

    @classmethod
    def parse(cls, text: str, flavor: Flavor) -> Self:
        """Parse a meta file's text; raise `Malformed` if it is not valid."""
        hint = f"restore {META_NAME}, or move this sub-directory away and start again"
        try:
            found = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise Malformed(
                f"{META_NAME} is not TOML: {error}", hint, Code.RELAY_UNUSABLE
            ) from error
        if {key: type(value) for key, value in found.items()} != _KEYS or found["binlog-pos"] < 0:
            raise Malformed(f"{META_NAME} says {found}", hint, Code.RELAY_UNUSABLE)
        gtids = parse_gtid_set(found["binlog-gtid"], flavor)
        return cls(found["binlog-name"], found["binlog-pos"], gtids)

    def __str__(self) -> str:
        return (
            f"binlog-name = {json.dumps(self.file)}\n"
            f"binlog-pos = {self.position}\n"
            f"binlog-gtid = {json.dumps(str(self.gtids))}\n"
        )


class RelayFolder:
    """The index and the metas of a relay log on the disk; its latest sub-directory is written."""

    def __init__(self, root: Path, flavor: Flavor) -> None:
        """Read the index; raise `NeedsOperator` if it cannot be correct."""
        self.root = root
        self._flavor = flavor
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.sub_dirs = sub_dirs_of(root)
        for sub_dir in self.sub_dirs[-1:]:
            if not (root / str(sub_dir)).is_dir():
                raise NeedsOperator(
                    f"{root / INDEX_NAME} names {sub_dir}, which is not there",
                    "restore it, or move the relay log away and start from a checkpoint",
                    Code.RELAY_DAMAGED,
                )

    @property
    def current(self) -> SubDir | None:
        """The sub-directory being written; None in a fresh relay log."""
        return self.sub_dirs[-1] if self.sub_dirs else None

    def path(self, sub_dir: SubDir) -> Path:
        return self.root / str(sub_dir)

    def load(self, sub_dir: SubDir) -> Meta:
        """Return a sub-directory's meta, or an empty meta if none was saved."""
        path = self.path(sub_dir) / META_NAME
        if not path.exists():
            return Meta("", FIRST_POSITION, parse_gtid_set("", self._flavor))
        return Meta.parse(path.read_text(), self._flavor)

    def save(self, meta: Meta) -> None:
        """Replace the current sub-directory's meta, durably."""
        assert self.current is not None, "a meta belongs to a sub-directory"
        replace_file(self.path(self.current) / META_NAME, str(meta).encode())

    def add(self, uuid: str, *, first_suffix: int = 1) -> SubDir:
        """Create the next sub-directory for a server with `uuid`, with the last GTIDs."""
        current = self.current
        made = current.next(uuid) if current else SubDir(uuid, first_suffix)
        empty = Meta("", FIRST_POSITION, parse_gtid_set("", self._flavor))
        meta = replace(self.load(current), file="", position=FIRST_POSITION) if current else empty
        self._make(made)
        # The meta before the index: a sub-directory that the index names has a meta.
        replace_file(self.path(made) / META_NAME, str(meta).encode())
        self._write_index([*self.sub_dirs, made])
        return made

    def _make(self, made: SubDir) -> None:
        path = self.path(made)
        path.mkdir(mode=0o700, exist_ok=True)
        # A crash may have come between the directory and its line in the index.
        found = sorted(child.name for child in path.iterdir() if not is_meta(child.name))
        if found:
            raise NeedsOperator(
                f"{path} holds {found[0]}, and {INDEX_NAME} does not name it",
                "move that directory away: it is not of this relay log, or the index is old",
                Code.RELAY_UNUSABLE,
            )

    def trim(self) -> list[SubDir]:
        """Drop and return the index lines of missing sub-directories, except the current."""
        gone = [sub_dir for sub_dir in self.sub_dirs[:-1] if not self.path(sub_dir).is_dir()]
        # Numbers must be consecutive: only the oldest sub-directories can go.
        leading = self.sub_dirs[: len(gone)]
        if gone and gone == leading:
            self._write_index(self.sub_dirs[len(gone) :])
            return gone
        return []

    def _write_index(self, sub_dirs: list[SubDir]) -> None:
        replace_file(self.root / INDEX_NAME, write_index(sub_dirs).encode())
        self.sub_dirs = sub_dirs


def is_meta(name: str) -> bool:
    """Return whether a file is a meta, or a meta that a crash left half written."""
    return name in (META_NAME, META_NAME + DRAFT)


def files_in(folder: Path) -> list[FileName]:
    """Return a sub-directory's binlog files by number; raise `Malformed` for another file."""
    return sorted(
        FileName.parse(child.name) for child in folder.iterdir() if not is_meta(child.name)
    )

"""`penstock ctl dump` shows the content of a Pump's log, without a Pump, etcd or writing.

    000000.seg:32    prewrite  start_ts 463…  commit_ts -     2026-11-21T09:30:00.016Z  123 bytes
    000000.seg:179   commit    start_ts 463…  commit_ts 463…  2026-11-21T09:30:00.021Z  28 bytes
    000000.seg:231   DAMAGE up to 402: the payload does not match its checksum

Every byte is read and every checksum verified, even of records that are not shown. Exit code 1 when
bytes changed.

Opening a log cuts torn ends and makes names durable; this only reads, takes no lock and may read
the folder of a running Pump. After damage it continues at the next place that proves to be a frame.
Bytes at the end of the last segment that are not a frame are the torn end of a crash, unless a
later frame states that the place had been on the disk; see `penstock/log/segment.py`.
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google_crc32c import value

from penstock.codes import Code
from penstock.errors import Corrupt, Malformed, NeedsOperator
from penstock.log.chunks import (
    CHUNK,
    ChunkList,
    chunk_start_ts,
    decode_chunk_list,
    is_special,
    special_kind,
)
from penstock.log.files import File, Files
from penstock.log.frame import HEADER_SIZE, decode_header
from penstock.log.segment import (
    BEGIN,
    BrokenAt,
    Segment,
    headers,
    open_segment,
    segment_name,
    walk,
    written_bytes,
)
from penstock.node.output import (
    JSON,
    add_output,
    describe,
    kind_of,
    line_of,
    moment_of,
    show,
    time_text,
    write_line,
)
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog

_NAME = re.compile(r"(\d{6,})\.seg")


@dataclass(frozen=True, slots=True)
class Stored:
    """A record with valid checksums; an empty payload is the mark of a clean shutdown."""

    path: Path
    offset: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes from `offset` to `end` that differ from the written bytes."""

    path: Path
    offset: int
    end: int
    what: str


@dataclass(frozen=True, slots=True)
class Remark:
    """An observation that is not damage, but worth reporting."""

    path: Path
    offset: int
    what: str


Found = Stored | Damage | Remark


def look(path: Path, files: Files | None = None) -> Iterator[Found]:
    """Yield the contents of a segment file, or of a data folder's segments by number.

    Raises `NeedsOperator` when `path` has no segment.
    """
    files = files or Files()
    expected: int | None = None
    for segment_path in segment_paths(path):
        number = _number(segment_path)
        if expected is not None and number is not None and number > expected:
            for missing in range(expected, number):
                gone = segment_path.with_name(segment_name(missing))
                yield Damage(gone, 0, 0, "this segment is missing")
        expected = None if number is None else number + 1
        try:
            yield from _segment(files, segment_path, number)
        except FileNotFoundError:
            yield Remark(segment_path, 0, "went away while it was read: purged")
        except OSError as error:
            yield Damage(segment_path, 0, 0, f"cannot be read: {error}")


def segment_paths(path: Path) -> list[Path]:
    """Return the segment files of a path: itself, or those in the folder, by number."""
    if path.is_file():
        return [path]
    folder = path / "log" if (path / "log").is_dir() else path
    found = [p for p in folder.iterdir() if _NAME.fullmatch(p.name)] if folder.is_dir() else []
    if not found:
        raise NeedsOperator(
            f"there is no segment in {folder}",
            "name a Pump's data-dir, or one of the .seg files in its log folder",
            Code.COMMAND_INVALID,
        )
    return sorted(found, key=lambda p: int(p.stem))


def _number(path: Path) -> int | None:
    name = _NAME.fullmatch(path.name)
    return int(name[1]) if name else None


def _segment(files: Files, path: Path, number: int | None) -> Iterator[Found]:
    file = files.open(path)
    try:
        size = file.size()
        head = file.read(0, BEGIN)
        stated = int.from_bytes(head[8:12], "little")
        try:
            segment = open_segment(files, path, stated if number is None else number)
        except Corrupt as error:
            yield Damage(path, error.offset, min(BEGIN, size), error.what)
            seed = _likely_seed(file, head)
            if seed is None:
                return
            segment = Segment(stated if number is None else number, path, seed, 0, 0)
        except NeedsOperator as error:  # Another version: its content cannot be judged.
            yield Damage(path, 0, size, error.problem)
            return
        sealed_end, is_last = _sealed_end(files, path, number)
        if sealed_end is not None and sealed_end > size:
            what = f"the file ends here, but its successor knows {sealed_end} bytes"
            yield Damage(path, size, sealed_end, what)
        end = size if sealed_end is None else min(size, sealed_end)
        yield from _frames(file, segment, end, is_last)
        if end < size:
            what = f"sealed here; {size - end} bytes of a failed write after it do not count"
            yield Remark(path, end, what)
    finally:
        file.close()


def _sealed_end(files: Files, path: Path, number: int | None) -> tuple[int | None, bool]:
    """Return the segment's end as its successor records it, and whether it has none."""
    if number is None:
        return None, True
    successor = path.with_name(segment_name(number + 1))
    if not successor.exists():
        later = any((_number(other) or 0) > number for other in path.parent.iterdir())
        return None, not later
    try:
        return open_segment(files, successor, number + 1).previous_end, False
    except (Corrupt, NeedsOperator):  # Reported when its turn comes.
        return None, False


def _likely_seed(file: File, head: bytes) -> int | None:
    """Return the seed of the frames below a damaged header, if one of two guesses fits."""
    if len(head) < BEGIN:
        return None
    frame = file.read(BEGIN, HEADER_SIZE)
    for seed in (struct.unpack_from("<I", head, BEGIN - 4)[0], value(head[: BEGIN - 4])):
        if decode_header(frame, 0, offset=BEGIN, seed=seed) is not None:
            return int(seed)
    return None


def _frames(file: File, segment: Segment, end: int, is_last: bool) -> Iterator[Found]:
    place = BEGIN
    while place < end:
        try:
            for offset, frame in walk(file, place, end, segment.seed):
                yield Stored(segment.path, offset, frame.payload)
                place = frame.end
        except BrokenAt as broken:
            following = headers(file, broken.offset + 1, end, segment.seed)
            resume, header = next(following, (end, None))
            proven = not is_last or (header is not None and header.synced > broken.offset)
            if not proven and not any(h.synced > broken.offset for _, h in following):
                if torn := written_bytes(file, broken.offset, end):
                    what = f"torn end of {torn} bytes ({broken.what}): never proven to have been"
                    yield Remark(segment.path, broken.offset, f"{what} acknowledged")
                return
            yield Damage(segment.path, broken.offset, resume, broken.what)
            place = resume


_DAMAGED = 1
_OPEN_SHOWN = 20


def add_commands(commands: Any) -> None:
    dump = commands.add_parser(
        "dump",
        help="print and verify what lies in a Pump's log; offline, only reads",
        description="Print every record of a segment file or of a Pump's data folder, verify all"
        " checksums, and say where damage lies. Exit code 1 when there is damage.",
    )
    dump.add_argument("path", type=Path, metavar="PATH", help="data folder, or one .seg file")
    dump.add_argument("--summary", action="store_true", help="no records, only what they add up to")
    dump.add_argument("--full", action="store_true", help="with every binlog's row changes")
    for name, what in (("from", "at or after"), ("to", "at or before")):
        dump.add_argument(
            f"--{name}-ts",
            type=int,
            metavar="TS",
            help=f"only records with a start_ts or commit_ts {what} this",
        )
    add_output(dump)
    dump.set_defaults(run=_dump)


Shown = tuple[str, dict[str, Any]]
"""The output for one record: a line of text, and its facts."""


@dataclass(slots=True)
class Totals:
    """The totals of a log's records."""

    records: Counter[str] = field(default_factory=Counter)
    record_bytes: Counter[str] = field(default_factory=Counter)
    ddl: int = 0
    pieces: int = 0
    """Parts of large Prewrites, also of streams that broke off."""
    first_ts: int = 0
    last_ts: int = 0
    open: dict[int, str] = field(default_factory=dict)
    """The place of each Prewrite that no later record commits or rolls back."""
    damages: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    clean_stop: bool = False

    def note(self, binlog: Binlog, size_bytes: int, place: str) -> None:
        kind = kind_of(binlog)
        self.records[kind] += 1
        self.record_bytes[kind] += size_bytes
        for ts in filter(None, (binlog.start_ts, binlog.commit_ts)):
            self.first_ts = min(ts, self.first_ts or ts)
            self.last_ts = max(ts, self.last_ts)
        if binlog.tp is BinlogType.PREWRITE:
            self.ddl += binlog.is_ddl
            self.open[binlog.start_ts] = place
        elif not binlog.is_fake:
            self.open.pop(binlog.start_ts, None)

    def text(self, segments: int) -> str:
        count, size = sum(self.records.values()), sum(self.record_bytes.values())
        lines = [f"{segments} segments, {count} records, {size} bytes of binlogs"]
        for kind, records in sorted(self.records.items()):
            lines.append(f"  {kind:8}  {records} records, {self.record_bytes[kind]} bytes")
        if self.ddl:
            lines.append(f"  {self.ddl} of the Prewrites are DDL")
        if self.pieces:
            lines.append(f"  {self.pieces} pieces of large Prewrites, each a record of its own")
        for name, ts in (("first", self.first_ts), ("last", self.last_ts)):
            if ts:
                lines.append(f"{name} timestamp {ts}, {time_text(ts)}")
        lines.append(f"{len(self.open)} Prewrites without Commit or Rollback")
        oldest = sorted(self.open)[:_OPEN_SHOWN]
        lines += [f"  start_ts {ts}, {time_text(ts)}, at {self.open[ts]}" for ts in oldest]
        lines.append("ends with the mark of a clean stop" if self.clean_stop else "no clean stop")
        lines += self.remarks
        lines.append(f"damaged places: {len(self.damages)}")
        lines += self.damages
        return "\n".join(lines)

    def facts(self, segments: int) -> dict[str, Any]:
        return {
            "segments": segments,
            "records": dict(sorted(self.records.items())),
            "record_bytes": dict(sorted(self.record_bytes.items())),
            "ddls": self.ddl,
            "pieces": self.pieces,
            "first_ts": self.first_ts,
            "last_ts": self.last_ts,
            "open_prewrites": [
                {"start_ts": ts, "place": self.open[ts]} for ts in sorted(self.open)[:_OPEN_SHOWN]
            ],
            "open_prewrite_count": len(self.open),
            "clean_stop": self.clean_stop,
            "remarks": self.remarks,
            "damaged_places": len(self.damages),
            "damages": self.damages,
        }


def _dump(arguments: argparse.Namespace) -> int:
    if not arguments.path.exists():
        raise NeedsOperator(
            f"there is no {arguments.path}",
            "name a Pump's data-dir or a .seg file",
            Code.COMMAND_INVALID,
        )
    totals = _walk(arguments)
    if arguments.summary:
        segments = len(segment_paths(arguments.path))
        show(arguments, totals.facts(segments), totals.text(segments))
    if totals.damages and not arguments.summary:
        print(f"penstock ctl: {len(totals.damages)} damaged places", file=sys.stderr)
    return _DAMAGED if totals.damages else 0


def _walk(arguments: argparse.Namespace) -> Totals:
    totals = Totals()
    for found in look(arguments.path):
        place = f"{found.path.name}:{found.offset}"
        shown = _shown(found, place, totals, arguments)
        if shown is None or arguments.summary:
            continue
        text, facts = shown
        if arguments.output == JSON:
            write_line({"file": found.path.name, "offset": found.offset, **facts})
        else:
            print(text)
    return totals


def _shown(found: Found, place: str, totals: Totals, arguments: argparse.Namespace) -> Shown | None:
    if isinstance(found, Stored) and found.payload:
        chunk_list: ChunkList | None = None
        try:
            if is_special(found.payload):
                if special_kind(found.payload) == CHUNK:
                    return _piece(found.payload, place, totals, arguments)
                chunk_list = decode_chunk_list(found.payload)
            binlog = decode_binlog(found.payload if chunk_list is None else chunk_list.head)
        except Malformed as error:
            end = found.offset + HEADER_SIZE + len(found.payload)
            found = Damage(found.path, found.offset, end, f"not a binlog: {error.problem}")
        else:
            size_bytes = len(found.payload) if chunk_list is None else chunk_list.size_bytes
            shown = _record(binlog, size_bytes, place, totals, arguments)
            if shown is None or chunk_list is None:
                return shown
            text, facts = shown
            first, *_ = chunk_list.positions
            begin, count = f"{first.segment:06}.seg:{first.offset}", len(chunk_list.positions)
            facts |= {"pieces": count, "first_piece": begin}
            return text.replace("bytes", f"bytes in {count} pieces from {begin} on", 1), facts
    if isinstance(found, Stored):
        totals.clean_stop = True
        return f"{place:22}  stop      the mark of a clean stop", {"kind": "stop"}
    if isinstance(found, Remark):
        line = f"{place:22}  {found.what}"
        totals.remarks.append(line)
        return line, {"kind": "remark", "what": found.what}
    line = f"{place:22}  DAMAGE up to {found.end}: {found.what}"
    totals.damages.append(line)
    return line, {"kind": "damage", "end_offset": found.end, "what": found.what}


def _piece(
    payload: bytes, place: str, totals: Totals, arguments: argparse.Namespace
) -> Shown | None:
    """Count a part of a large Prewrite; a later chunk list tells whether that exists."""
    totals.clean_stop = False
    start_ts = chunk_start_ts(payload)
    if not _is_asked_for([start_ts], arguments):
        return None
    totals.pieces += 1
    line = f"{place:22}  piece     start_ts {start_ts:<19}  {len(payload)} bytes"
    return line, {"kind": "piece", "start_ts": start_ts, "size_bytes": len(payload)}


def _is_asked_for(stamps: Sequence[int], arguments: argparse.Namespace) -> bool:
    low, high = arguments.from_ts or 0, arguments.to_ts or 1 << 63
    return any(low <= ts <= high for ts in stamps)


def _record(
    binlog: Binlog, size_bytes: int, place: str, totals: Totals, arguments: argparse.Namespace
) -> Shown | None:
    totals.clean_stop = False
    stamps = [ts for ts in (binlog.start_ts, binlog.commit_ts) if ts]
    if not _is_asked_for(stamps, arguments):
        return None
    totals.note(binlog, size_bytes, place)
    if arguments.summary:
        return None
    text = f"{place:22}  {line_of(binlog, size_bytes)}"
    facts: dict[str, Any] = {
        "kind": kind_of(binlog),
        "start_ts": binlog.start_ts,
        "commit_ts": binlog.commit_ts or None,
        "time": moment_of(binlog.commit_ts or binlog.start_ts),
        "size_bytes": size_bytes,
    }
    if binlog.is_ddl:
        query = binlog.ddl_query.decode("utf-8", "backslashreplace")
        facts |= {"ddl_job_id": binlog.ddl_job_id, "ddl_query": query}
    if arguments.full:
        facts["details"] = describe(binlog).splitlines()
        text += "\n    " + "\n    ".join(facts["details"])
    return text, facts

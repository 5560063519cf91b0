"""Decides where a relay log continues: in the same file, in a new sub-directory, or nowhere.

    finding                                            consequence
    no sub-directory, or a sub-directory without file  start as the options say, or after its GTIDs
    the same server, and its file is ours              the end of the last complete transaction
    another server that has all of our GTIDs           new sub-directory, the file after them
    anything else: another history                     refused, until an operator accepts it

A server that was reset or restored from a backup reuses the names of files, positions and GTIDs for
other transactions, so none of these proves that it has the relayed events. The first event of a
file has the time at which the file was started (`description_digest`): it proves whether the same
server's file is ours. For another server GTIDs are proof, since they contain the server that made
them. A history that an operator accepts is read from its start, with no GTIDs known.

A new sub-directory starts at the beginning of a file, so that its files are complete: transactions
of an earlier sub-directory may be repeated in it, and their reader recognises them by their GTIDs.

`file_after` and `file_at` find the server's file to start from, by a GTID set or a point in time.
"""

from __future__ import annotations

import datetime as dt
import logging
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable
from pumpclient.mysql.events.frame import (
    HEADER,
    HEADER_SIZE,
    EventType,
    description_digest,
    read_header,
    rotate_of,
)
from pumpclient.mysql.gtid import Flavor, GtidSet, MariadbGtidSet, parse_gtid_set
from pumpclient.mysql.protocol.server import (
    PURGED_HINT,
    RELOAD_ALL,
    Connection,
    PositionLost,
    Purged,
    ServerAddress,
    ServerIdentity,
    binlog_files,
    binlog_gtids,
)
from pumpclient.mysql.protocol.stream import BinlogStream, StreamOptions
from pumpclient.mysql.relay.boundaries import Recovered, cut, recover
from pumpclient.mysql.relay.layout import FIRST_POSITION, FileName, Meta, RelayFolder, SubDir

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a fresh relay log: a file, else after GTIDs.

    The log starts at the beginning of the file that this leads to: a relay log has complete files.
    """

    file: str = ""
    gtids: str = ""
    accepts: str = ""
    """The name of another `History` that an operator accepts."""


class ResumeFinder:
    """Decides, by asking the server on dedicated connections."""

    def __init__(self, folder: RelayFolder, address: ServerAddress, options: StreamOptions) -> None:
        self._folder = folder
        self._address = address
        self._options = options

    def find(
        self, identity: ServerIdentity, start: Start, known: Recovered | None = None
    ) -> Recovered:
        """Return where to continue with the server that `identity` names.

        The newest sub-directory is recovered first, by `known` when the writer can say where its
        last complete transaction ends. The returned file may not exist yet. Raises `Retryable` when
        another server answers during this, and `NeedsOperator`.
        """
        current = self._folder.current
        if current is None:
            file = self._first_file(identity, start)
            self._folder.add(identity.uuid)
            return self._begin(file, parse_gtid_set("", identity.flavor))
        meta = self._folder.load(current)
        path = self._folder.path(current)
        found = cut(path, known) if known is not None else recover(path, meta)
        if found.cut_bytes:
            logger.warning(
                "%s: %d bytes cut off after %s", current, found.cut_bytes, found.position
            )
        if current.uuid != identity.uuid:
            return self._switch(current, found, identity, start)
        if found.file is None:
            if self._is_accepted(start):
                start = Start(file=history_of(self._address, self._options).file)
            elif meta.gtids:
                start = Start(gtids=str(meta.gtids))
            return self._begin(self._first_file(identity, start), meta.gtids)
        if self._is_reset(current, found, identity):
            return self._reset(found, identity, start)
        return found

    def _begin(self, file: str, gtids: GtidSet) -> Recovered:
        return Recovered(FileName.parse(file), FIRST_POSITION, gtids)

    def _first_file(self, identity: ServerIdentity, start: Start) -> str:
        if start.file:
            return start.file
        gtids = parse_gtid_set(start.gtids, identity.flavor)
        answered, file = file_after(self._address, self._options, gtids)
        check_same(self._address, answered, identity)
        return file

    def _switch(
        self, current: SubDir, found: Recovered, identity: ServerIdentity, start: Start
    ) -> Recovered:
        gtids = found.gtids
        if found.file is None and not gtids:
            file = self._first_file(identity, start)  # Nothing was relayed of this server before.
        elif self._is_accepted(start):
            return self._accepted(identity)
        else:
            relayed = f"{found.file or 'nothing'} of {current.uuid}"
            file = continued_in(self._address, self._options, identity, relayed, gtids)
        if found.file is not None:
            # The next sub-directory takes its GTIDs from here.
            self._folder.save(Meta(str(found.file), found.position, gtids))
        self._folder.add(identity.uuid)
        logger.info("another server, %s: on in its %s", identity.uuid, file)
        return self._begin(file, gtids)

    def _is_reset(self, current: SubDir, found: Recovered, identity: ServerIdentity) -> bool:
        assert found.file is not None
        stored = relayed_description(self._folder.path(current) / str(found.file))
        if not stored:
            return False  # Only its name is known: the writer will check it.
        return not has_file(
            self._address, self._options, identity, found.file, description_digest(stored)
        )

    def _reset(self, found: Recovered, identity: ServerIdentity, start: Start) -> Recovered:
        if self._is_accepted(start):
            return self._accepted(identity)
        history = history_of(self._address, self._options)
        raise other_history(
            self._address,
            f"the relay log ends in {found.file}:{found.position} of {identity.uuid}, with GTIDs"
            f" {found.gtids or 'none'}",
            history,
        )

    def _is_accepted(self, start: Start) -> bool:
        if not start.accepts:
            return False
        return history_of(self._address, self._options).name == start.accepts

    def _accepted(self, identity: ServerIdentity) -> Recovered:
        history = history_of(self._address, self._options)
        check_same(self._address, history.server, identity)
        empty = parse_gtid_set("", identity.flavor)
        self._folder.add(identity.uuid)
        self._folder.save(Meta("", FIRST_POSITION, empty))
        logger.warning("an operator accepts the history that begins with %s", history)
        return self._begin(history.file, empty)


def relayed_description(path: Path) -> bytes:
    """Return a relay file's FORMAT_DESCRIPTION, or nothing if it does not exist yet."""
    try:
        with path.open("rb") as file:
            head = file.read(FIRST_POSITION + HEADER_SIZE)
            if len(head) < FIRST_POSITION + HEADER_SIZE:
                return b""
            size = HEADER.unpack_from(head, FIRST_POSITION)[3]
            file.seek(FIRST_POSITION)
            return file.read(size)
    except FileNotFoundError:
        return b""


def has_file(
    address: ServerAddress,
    options: StreamOptions,
    identity: ServerIdentity,
    file: FileName,
    digest: int,
) -> bool:
    """Return whether a server has exactly the described file, not just a file of its name.

    Raises `Purged` if the server has deleted the file and continues after it.
    """
    try:
        answered, sent = description_of(address, options, str(file))
    except Purged:
        with address.session() as connection:
            names = _names(connection)
        if any(name.base == file.base and name >= file for name in names):
            raise
        return False
    check_same(address, answered, identity)
    return description_digest(sent) == digest


def continued_in(
    address: ServerAddress,
    options: StreamOptions,
    identity: ServerIdentity,
    seen: str,
    gtids: GtidSet,
) -> str:
    """Return the file of another server that continues after `gtids`.

    Raises `NeedsOperator` unless it has them all: `seen` describes the events read, for people.
    """
    if not gtids:
        problem = f"{seen} was read, and there are no GTIDs to find its place by"
        raise other_history(address, problem, history_of(address, options))
    _check_flavor(gtids, identity)
    with address.session() as connection:
        lacking = lacks(binlog_gtids(connection, identity.flavor), gtids)
    if lacking and identity.flavor is Flavor.MYSQL:
        # MySQL itself checks only GTIDs that contain its own uuid.
        problem = f"{seen} was read, and the server lacks {lacking}"
        raise other_history(address, problem, history_of(address, options))
    try:
        answered, file = file_after(address, options, gtids)
    except NeedsOperator as error:
        if error.code is not Code.SERVER_RESET:
            raise
        problem = f"{seen} was read, with GTIDs {gtids}: {error.problem}"
        raise other_history(address, problem, history_of(address, options)) from error
    check_same(address, answered, identity)
    return file


def lacks(has: GtidSet, gtids: GtidSet) -> GtidSet:
    if isinstance(has, MariadbGtidSet):
        assert isinstance(gtids, MariadbGtidSet), "one flavour has one kind of GTID"
        # A position alone proves nothing: another server may have reached a larger number.
        own = {(each.domain, each.server): each.sequence for each in has}
        return MariadbGtidSet(
            each
            for each in gtids.position()
            if own.get((each.domain, each.server), 0) < each.sequence
        )
    assert not isinstance(gtids, MariadbGtidSet), "one flavour has one kind of GTID"
    return gtids.subtract(has)


def other_history(address: ServerAddress, problem: str, history: History) -> NeedsOperator:
    return NeedsOperator(
        f"{address} has another history, which begins with {history}: {problem}",
        f"{RELOAD_ALL}; or follow that history from its beginning (penstock source continue"
        " --accept-gap): what lies between is missing downstream until its tables are reloaded",
        Code.SERVER_RESET,
    )


def check_same(address: ServerAddress, answered: ServerIdentity, identity: ServerIdentity) -> None:
    """Raise `Retryable` if another server answers now."""
    if answered != identity:
        raise Retryable(
            f"{address} leads to {answered.uuid}, just now {identity.uuid}",
            Code.SERVER_POSITION_LOST,
        )


def _names(connection: Connection) -> list[FileName]:
    return sorted(map(FileName.parse, binlog_files(connection)))


def _check_flavor(gtids: GtidSet, identity: ServerIdentity) -> None:
    try:
        parse_gtid_set(str(gtids), identity.flavor)
    except Malformed as error:
        other = Flavor.MYSQL if identity.flavor is Flavor.MARIADB else Flavor.MARIADB
        raise NeedsOperator(
            f"the relay log is of a {other.value}, the server runs {identity.version}",
            f"a source cannot go over from MySQL to MariaDB or back: {RELOAD_ALL}",
            Code.SERVER_POSITION_LOST,
        ) from error


def description_of(
    address: ServerAddress, options: StreamOptions, file: str
) -> tuple[ServerIdentity, bytes]:
    with closing(BinlogStream(address, options)) as stream:
        stream.start_at(file, FIRST_POSITION)
        for event in stream.events():
            if read_header(event).type == EventType.FORMAT_DESCRIPTION:
                return stream.identity, event
    raise Retryable(f"{address}: the stream ended before {file} began", Code.SERVER_AWAY)


class History(NamedTuple):
    """The whole binlog of a server, identified by the first event of its oldest file.

    Names of files, positions and GTIDs are reused after a RESET MASTER and in a restored server.
    The first event of a file is unique: it has the time at which the file was started.
    """

    server: ServerIdentity
    file: str
    begun_s: int
    digest: int

    @property
    def name(self) -> str:
        return f"{self.server.uuid} {self.file} {self.digest:08x}"

    def __str__(self) -> str:
        begun = dt.datetime.fromtimestamp(self.begun_s, dt.UTC).isoformat(" ", "seconds")
        return f"{self.file} of {self.server.uuid}, begun {begun}"


def history_of(address: ServerAddress, options: StreamOptions) -> History:
    """Return a server's current history; raise `NeedsOperator` if it has no binlog."""
    with address.session() as connection:
        names = list(binlog_files(connection))
    if not names:
        raise PositionLost(
            f"{address} has no binlog", hint="start it with log_bin", code=Code.SERVER_SETTING
        )
    server, event = description_of(address, options, names[0])
    return History(server, names[0], read_header(event).timestamp_s, description_digest(event))


def file_after(
    address: ServerAddress, options: StreamOptions, gtids: GtidSet
) -> tuple[ServerIdentity, str]:
    """Return the server's identity, and its file with the first transaction not in `gtids`.

    Raises `Purged` when that file is deleted, and `NeedsOperator` when the server never had
    `gtids`.
    """
    with closing(BinlogStream(address, options)) as stream:
        stream.start_after(gtids)
        file = ""
        for event in stream.events():
            if read_header(event).type == EventType.ROTATE:
                _, file = rotate_of(event)
            elif file:
                return stream.identity, file  # Otherwise a refusal would have come.
    raise Retryable(f"{address}: the stream ended before it began", Code.SERVER_AWAY)


def file_at(address: ServerAddress, options: StreamOptions, time_s: int) -> str:
    """Return the last file that was started at or before `time_s` (seconds since 1970).

    Raises `Purged` when even the oldest was started later: changes since then are gone.
    """
    with address.session() as connection:
        names = list(binlog_files(connection))
    low, high = 0, len(names)
    while low < high:  # The first file started after `time_s` is at or after `low`.
        middle = (low + high) // 2
        _, event = description_of(address, options, names[middle])
        if read_header(event).timestamp_s <= time_s:
            low = middle + 1
        else:
            high = middle
    if not names:
        raise NeedsOperator(
            f"{address} has no binlog", "start it with log_bin", Code.SERVER_SETTING
        )
    if low == 0:
        raise Purged(
            f"{address}: {names[0]} began after {time_s}",
            hint=PURGED_HINT,
            code=Code.SERVER_POSITION_LOST,
        )
    return names[low - 1]

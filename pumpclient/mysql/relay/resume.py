"""Resume point: where a relay log continues; the same file, a new sub-directory, or the beginning.

    what is found                                      what follows
    no sub-directory, or one without a file            start as the options say, or after its GTIDs
    the same server, and its file is ours              the end of the last complete transaction
    the same server, its file is another of that name  RESET MASTER: new sub-directory, first file
    another server                                     new sub-directory, the file after our GTIDs

A new sub-directory begins at the beginning of a file, so that its files are whole: transactions
that an earlier sub-directory has may come again in it, and their reader knows them by their GTIDs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable
from pumpclient.mysql.events.frame import HEADER, HEADER_SIZE
from pumpclient.mysql.gtid import Flavor, GtidSet, parse_gtid_set
from pumpclient.mysql.protocol.address import Connection, ServerAddress
from pumpclient.mysql.protocol.refusals import PositionLost, Purged
from pumpclient.mysql.protocol.server import ServerIdentity, binlog_files, master_status
from pumpclient.mysql.protocol.stream import StreamOptions, description_of, file_after, file_at
from pumpclient.mysql.relay.layout import FIRST_POSITION, FileName, Meta, RelayFolder, SubDir
from pumpclient.mysql.relay.recover import Recovered, cut, recover
from pumpclient.mysql.relay.writer import same_description

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a fresh relay log begins; the first that is given counts, else the server's end.

    It begins at the beginning of the file that this leads to: a relay log has whole files.
    """

    file: str = ""
    gtids: str | None = None
    time_s: int | None = None


class ResumeFinder:
    """Decides, with questions to the server on connections of their own."""

    def __init__(self, folder: RelayFolder, address: ServerAddress, options: StreamOptions) -> None:
        """Look below `folder`."""
        self._folder = folder
        self._address = address
        self._options = options

    def find(
        self, identity: ServerIdentity, start: Start, known: Recovered | None = None
    ) -> Recovered:
        """Return where to continue with the server that `identity` names.

        The newest sub-directory is recovered first, by `known` when the writer can say where its
        last complete transaction ends. The file that is returned may not exist yet.
        Raises `Retryable` when another server answers meanwhile, and `NeedsOperator`.
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
            if meta.gtids:
                start = Start(gtids=str(meta.gtids))
            return self._begin(self._first_file(identity, start), meta.gtids)
        if self._is_reset(current, found, identity):
            return self._reset(identity)
        return found

    def _begin(self, file: str, gtids: GtidSet) -> Recovered:
        return Recovered(FileName.parse(file), FIRST_POSITION, gtids)

    def _first_file(self, identity: ServerIdentity, start: Start) -> str:
        if start.file:
            return start.file
        if start.gtids is not None:
            gtids = parse_gtid_set(start.gtids, identity.flavor)
            answered, file = file_after(self._address, self._options, gtids)
            self._check_same(answered, identity)
            return file
        if start.time_s is not None:
            return file_at(self._address, self._options, start.time_s)
        with self._address.session() as connection:
            return master_status(connection, identity.flavor).file

    def _check_same(self, answered: ServerIdentity, identity: ServerIdentity) -> None:
        if answered != identity:
            raise Retryable(
                f"{self._address} leads to {answered.uuid}, just now {identity.uuid}",
                code=Code.SERVER_OTHER,
            )

    def _switch(
        self, current: SubDir, found: Recovered, identity: ServerIdentity, start: Start
    ) -> Recovered:
        gtids = found.gtids
        if found.file is None and not gtids:
            file = self._first_file(identity, start)  # Nothing was relayed of the server before.
        elif not gtids:
            raise NeedsOperator(
                f"{self._address} is {identity.uuid}, the relay log is of {current.uuid}, and there"
                " are no GTIDs to find its place by",
                hint="turn GTIDs on at all servers, or begin again with an initial load",
                code=Code.SERVER_OTHER,
            )
        else:
            _check_flavor(gtids, identity)
            answered, file = file_after(self._address, self._options, gtids)
            self._check_same(answered, identity)
        if found.file is not None:
            # The next sub-directory takes its GTIDs from here.
            self._folder.save(Meta(str(found.file), found.position, gtids))
        self._folder.add(identity.uuid)
        logger.info("another server, %s: on in its %s", identity.uuid, file)
        return self._begin(file, gtids)

    def _is_reset(self, current: SubDir, found: Recovered, identity: ServerIdentity) -> bool:
        """Return whether the server's file of our file's name is another one."""
        assert found.file is not None
        path = self._folder.path(current) / str(found.file)
        with path.open("rb") as file:
            head = file.read(FIRST_POSITION + HEADER_SIZE)
            if len(head) < FIRST_POSITION + HEADER_SIZE:
                return False  # Only its name is known: the writer will see.
            size = HEADER.unpack_from(head, FIRST_POSITION)[3]
            file.seek(FIRST_POSITION)
            stored = file.read(size)
        try:
            answered, sent = description_of(self._address, self._options, str(found.file))
        except Purged:
            with self._address.session() as connection:
                names = _names(connection)
            if any(name.base == found.file.base and name >= found.file for name in names):
                raise
            return True
        self._check_same(answered, identity)
        return not same_description(stored, sent)

    def _reset(self, identity: ServerIdentity) -> Recovered:
        with self._address.session() as connection:
            names = _names(connection)
        if not names:
            raise PositionLost(
                f"{self._address} has no binlog",
                hint="start it with log_bin",
                code=Code.SERVER_SETTING,
            )
        empty = parse_gtid_set("", identity.flavor)
        self._folder.add(identity.uuid)
        self._folder.save(Meta("", FIRST_POSITION, empty))
        logger.warning("%s was reset: on in its %s", identity.uuid, names[0])
        return self._begin(str(names[0]), empty)


def _names(connection: Connection) -> list[FileName]:
    return sorted(FileName.parse(file.name) for file in binlog_files(connection))


def _check_flavor(gtids: GtidSet, identity: ServerIdentity) -> None:
    try:
        parse_gtid_set(str(gtids), identity.flavor)
    except Malformed as error:
        other = Flavor.MYSQL if identity.flavor is Flavor.MARIADB else Flavor.MARIADB
        raise NeedsOperator(
            f"the relay log is of a {other.value}, the server runs {identity.version}",
            hint="a relay log cannot go over from MySQL to MariaDB or back: begin a new one",
            code=Code.SERVER_OTHER,
        ) from error

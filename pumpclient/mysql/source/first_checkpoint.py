"""Determines the first checkpoint of a source, from which it starts.

current                  the server's end now; its tables are defined here as they are
mysql-bin.000003:4       that place
0-1-100 | uuid:1-100     after these GTIDs
2026-11-21T09:30:00      the first transaction at or after that time (UTC unless stated)
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from dataclasses import replace
from pathlib import Path

import pymysql

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator
from pumpclient.mysql.events.frame import description_digest
from pumpclient.mysql.gtid import GtidSet, parse_gtid_set
from pumpclient.mysql.protocol.server import (
    Connection,
    ServerAddress,
    ServerIdentity,
    binlog_files,
    binlog_gtids,
    identify,
    master_status,
)
from pumpclient.mysql.protocol.stream import StreamOptions
from pumpclient.mysql.relay.layout import FIRST_POSITION, FileName, Location, sub_dirs_of
from pumpclient.mysql.relay.reader import file_in
from pumpclient.mysql.relay.resume import (
    check_same,
    continued_in,
    description_of,
    file_after,
    file_at,
    has_file,
    history_of,
    lacks,
    other_history,
)
from pumpclient.mysql.source.ddl.table_mapping import Tables
from pumpclient.mysql.source.state.checkpoint import Checkpoint, changed_within_load
from pumpclient.mysql.source.state.overrides import forget_overrides

log = logging.getLogger(__name__)

CURRENT = "current"
_PLACE = re.compile(r"(.+\.\d+):(\d+)", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d")
_HINT = "write current, file:position, a GTID set, or a moment such as 2026-11-21T09:30:00"


def first_checkpoint(
    start: str,
    root: Path,
    address: ServerAddress,
    options: StreamOptions,
    tables: Tables,
    epoch: int,
) -> Checkpoint:
    """Return the place that `start` denotes; for `current` the server's tables are also defined.

    Raises `NeedsOperator` for an invalid place, or if a relay log below `root` does not have it.
    """
    found = _place_of(start, root, address, options, tables)
    _, description = description_of(address, options, str(found.place.file))
    return replace(found, epoch=epoch, reloads=epoch, described=description_digest(description))


def _place_of(
    start: str, root: Path, address: ServerAddress, options: StreamOptions, tables: Tables
) -> Checkpoint:
    with address.session() as connection:
        identity = identify(connection)
        if start == CURRENT:
            return _current(connection, identity, root, tables)
    found = _PLACE.fullmatch(start)
    if found is not None and found[1].rpartition(".")[0]:
        return _at(root, identity, found[1], int(found[2]))
    if _MOMENT.match(start):
        since_s = moment_s(start)
        file = file_at(address, options, since_s)
        return _at(root, identity, file, FIRST_POSITION, since_s=since_s)
    try:
        gtids = parse_gtid_set(start, identity.flavor)
    except Malformed as error:
        raise NeedsOperator(
            f"start {start!r}: {error.problem}", _HINT, Code.POSITION_INVALID
        ) from error
    _, file = file_after(address, options, gtids)
    return _at(root, identity, file, FIRST_POSITION, gtids=str(gtids))


def moment_s(text: str) -> int:
    """Return a point in time as seconds since 1970; it is UTC unless it names a zone."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise NeedsOperator(f"{text!r} is no moment", _HINT, Code.POSITION_INVALID) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp())


def _current(
    connection: Connection, identity: ServerIdentity, root: Path, tables: Tables
) -> Checkpoint:
    """Record the binlog's end and define all tables, with writes blocked if possible."""
    is_locked = _locked(connection)
    try:
        status = master_status(connection, identity.flavor)
        count = tables.define_all(connection)
    finally:
        if is_locked:
            with connection.cursor() as cursor:
                cursor.execute("UNLOCK TABLES")
    log.info("begins at %s:%d; %d tables were defined", status.file, status.position, count)
    return _at(root, identity, status.file, status.position, gtids=status.gtids)


def _locked(connection: Connection) -> bool:
    """Block all changes on the server; return False without the privilege."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("FLUSH TABLES WITH READ LOCK")
    except pymysql.err.MySQLError as error:
        log.warning(
            "no global read lock (%s): a DDL at this very moment could come twice", error.args[-1]
        )
        return False
    return True


def _at(
    root: Path,
    identity: ServerIdentity,
    file: str,
    position: int,
    *,
    gtids: str = "",
    since_s: int = 0,
) -> Checkpoint:
    name = FileName.parse(file)
    if position < FIRST_POSITION:
        raise NeedsOperator(
            f"position {position} of {file}", "a file's first one is 4", Code.POSITION_INVALID
        )
    there = file_in(root, name)
    if there is None and root.exists() and any(root.iterdir()):
        raise NeedsOperator(
            f"the relay log in {root} does not have that place",
            "give an empty relay-dir",
            Code.POSITION_INVALID,
        )
    done = Location(there.suffix if there else 1, name, position)
    return Checkpoint(
        epoch=0,
        server=identity.uuid,
        done=str(done),
        gtids=gtids,
        since_s=since_s,
        skips_known=bool(gtids) and position == FIRST_POSITION,
    )


def without_relay(
    checkpoint: Checkpoint, root: Path, address: ServerAddress, options: StreamOptions
) -> Checkpoint:
    """Return where to continue when the relay log is gone; the same place while it exists.

    With the same server its files have the same places. Another server that has all GTIDs continues
    after these, in a new epoch. Raises `NeedsOperator` if the server's history does not contain all
    that was read, unless that history was accepted: its earlier, unread events are then lost. Also
    raises it for a relay log that is older than the checkpoint, or of another source.
    """
    if root.exists() and any(root.iterdir()):
        _check_not_older(checkpoint, root)
        return checkpoint
    with address.session() as connection:
        identity = identify(connection)
    gtids = parse_gtid_set(checkpoint.gtids, identity.flavor)
    if checkpoint.accepts:
        history = history_of(address, options)
        if history.name == checkpoint.accepts:
            return _elsewhere(
                checkpoint, history.file, history.server, history.digest, is_known=False
            )
    if identity.uuid == checkpoint.server:
        if why := _not_continued(checkpoint, address, options, identity, gtids):
            problem = f"the source is at {checkpoint.done} of {checkpoint.server}, and {why}"
            raise other_history(address, problem, history_of(address, options))
        return replace(
            checkpoint,
            done=_in_first(checkpoint.done),
            restart=_in_first(checkpoint.restart),
            written=_in_first(checkpoint.written),
        )
    seen = f"{checkpoint.done} of {checkpoint.server}"
    file = continued_in(address, options, identity, seen, gtids)
    answered, description = description_of(address, options, file)
    check_same(address, answered, identity)
    return _elsewhere(checkpoint, file, identity, description_digest(description), is_known=True)


def _in_first(place: str) -> str:
    return str(Location.parse(place)._replace(suffix=1)) if place else ""


def _elsewhere(
    checkpoint: Checkpoint, file: str, identity: ServerIdentity, digest: int, *, is_known: bool
) -> Checkpoint:
    """Return the checkpoint at the start of a file of another history, in the next epoch.

    The next epoch, and not a fresh epoch: a checkpoint that reappears in a restored etcd then leads
    to the same epoch as before, which a Drainer recognises, if it begins in the same file.
    """
    if checkpoint.is_within_load:
        raise changed_within_load()
    begin = Location(1, FileName.parse(file), FIRST_POSITION)
    return replace(
        checkpoint,
        epoch=checkpoint.epoch + 1,
        server=identity.uuid,
        done=str(begin),
        restart="",
        since_s=0,
        gtids=checkpoint.gtids if is_known else "",
        skips_known=is_known,
        described=digest,
        accepts="",
        written="",
        rulings=forget_overrides(checkpoint.rulings, begin),
        loaded="",
        history=digest,
        # An operator who accepts another history accepts missing and repeated transactions.
        after=checkpoint.last if is_known else "",
    )


def _not_continued(
    checkpoint: Checkpoint,
    address: ServerAddress,
    options: StreamOptions,
    identity: ServerIdentity,
    gtids: GtidSet,
) -> str:
    """Return why the server cannot continue from its checkpoint; empty if it can."""
    place = checkpoint.place
    with address.session() as connection:
        lacking = lacks(binlog_gtids(connection, identity.flavor), gtids)
        sizes = binlog_files(connection)
    if lacking:
        return f"the server lacks {lacking}"
    digest = checkpoint.described
    if digest and not has_file(address, options, identity, place.file, digest):
        return f"the server's {place.file} is another file of that name"
    size = sizes.get(str(place.file))
    if size is not None and size < place.position:
        return f"the server's {place.file} has {size} bytes only"
    return ""


def _check_not_older(checkpoint: Checkpoint, root: Path) -> None:
    """Raise `NeedsOperator` if the relay log lacks the checkpoint's history."""
    listed, place = sub_dirs_of(root), checkpoint.place
    server = next((each.uuid for each in listed if each.suffix == place.suffix), "")
    if listed and server != checkpoint.server and place.suffix >= listed[0].suffix:
        raise NeedsOperator(
            f"the checkpoint is at {checkpoint.done} of {checkpoint.server}, and the relay log in"
            f" {root} has {server or 'nothing'} there: it is older, or of another source",
            "move it away: the log is fetched again from the server",
            Code.RELAY_DAMAGED,
        )

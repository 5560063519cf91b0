"""Finds foreign keys that change rows without logging them; refuses, follows or reports these keys.

InnoDB executes CASCADE and SET NULL itself, below the binlog: the binlog has the parent's row but
none of its children's. RESTRICT, NO ACTION and SET DEFAULT (which InnoDB does not do) change no
row. The table that has the key decides; the parent need not be replicated.

    at a start         in SHOW CREATE TABLE of each replicated table: a MariaDB's
                       information_schema hides such keys from a user who has only SELECT
    in a reload        in SHOW CREATE TABLE of its tables, before they are dropped downstream
    in the stream      in each replicated DDL, before it is executed
    logged             a server may cascade above its storage engine, and log it: nothing to judge
    "stop"             `NeedsOperator` names table and key
    "repair"           `FollowedKeys` tells which tables a parent's change may have changed, and
                       `penstock verify` repairs them downstream
    "accept"           a warning names them, once in a process
    an operator's SQL  a warning as well: the operator chose it

Decision D34 in ARCHITECTURE.md states why these changes are not derived.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict

import pymysql

from penstock.codes import Code
from penstock.ddl.syntax.statements import Statement as Parsed
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.node.checks import Check
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.protocol.server import (
    Connection,
    ServerAddress,
    logs_cascades,
    master_status,
    version_of,
)
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.config import REPAIR, STOP, SourceConfig
from pumpclient.mysql.source.ddl.table_mapping import server_tables, show_create
from pumpclient.mysql.source.state.checkpoint import SourceStore
from pumpclient.mysql.translate.ddl_pieces import Piece
from pumpclient.mysql.translate.foreign_keys import (
    Cascade,
    Effects,
    ForeignKeys,
    cascades_of_statement,
    cascades_of_table,
)
from pumpclient.mysql.translate.online_ddl import OnlineDdl
from pumpclient.mysql.translate.outputs import Statement
from pumpclient.mysql.translate.statement_text import Dialect

log = logging.getLogger(__name__)

_CHECK, _NONE = "foreign keys", "none changes rows by itself"
_NAMED_MAX = 10
_NO_TABLE = 1146
_WHAT = "by foreign keys the server changes rows that its binlog does not have"
_HINT = (
    "change these keys to RESTRICT on the server, and let the application change the children's"
    " rows; or skip these tables (penstock source skip-table);"
    ' or set cascades = "repair": then penstock verify --repair restores these rows downstream, or'
    " penstock source reload, where the downstream is no SQL server"
)
_REPAIRED = (
    "each such change is noted: penstock verify --repair restores these rows downstream, or"
    " penstock source reload, where the downstream is no SQL server"
)
_HINT_OF_DDL = (
    "change the key to RESTRICT on the server, and let the application change the children's rows,"
    " then load the table again with penstock source reload;"
    ' or set cascades = "repair": then penstock verify --repair restores these rows downstream, or'
    " penstock source reload, where the downstream is no SQL server"
)


class Cascades:
    """The cascading foreign keys of one source, and how they are treated."""

    def __init__(
        self,
        policy: str,
        is_replicated: Callable[[str, str], bool],
        online: OnlineDdl | None,
        are_logged: Callable[[], bool],
    ) -> None:
        """Check the tables that are replicated and are not copies of `online`.

        `are_logged` asks the server whether its binlog has the changes made by its foreign keys.
        """
        self._policy = policy
        self._are_logged = are_logged
        self._is_replicated = is_replicated
        self._online = online
        self._reported: set[Cascade] = set()
        self.seen: set[Cascade] = set()
        """All keys that the server had, also of tables that are not replicated."""

    @classmethod
    def of(cls, config: SourceConfig) -> Cascades:
        rules = Rules(config.filter)
        address = config.source.address()

        def are_logged() -> bool:
            with address.session() as connection:
                return logs_cascades(connection)

        return cls(config.cascades, rules.is_replicated, config.online_ddl.rules(), are_logged)

    def checks(self, address: ServerAddress) -> list[Check]:
        """Return one check, with the cascades on the server if they are not logged."""
        found = self.on_server(address)
        if not found or self._are_logged():
            which = "the binlog has the rows that they change" if found else _NONE
            return [Check(_CHECK, True, which)]
        return [Check(
            _CHECK, False, f"{len(found)} change rows that the binlog does not have",
            _REPAIRED if self._policy == REPAIR else _HINT,
            required=self._policy == STOP, names=tuple(map(str, found)),
        )]  # fmt: skip

    def look_at_server(
        self,
        address: ServerAddress,
        left_out: Collection[Name] = (),
        only: Collection[Name] | None = None,
    ) -> None:
        """Raise `NeedsOperator` or warn about the server's cascades, except of skipped tables.

        With `only`, look at these tables only.
        """
        found = [each for each in self.on_server(address, only) if each.table not in left_out]
        self._judge(found, f"{address}: {_WHAT}", _HINT)

    def look_at(self, pieces: Iterable[Piece], dialect: Dialect) -> None:
        """Raise `NeedsOperator` or warn about the cascades that these pieces of DDL create."""
        for piece in pieces:
            found = cascades_of_statement(piece.tables[0], piece.sql, dialect)
            self._judge(found, _WHAT, _HINT_OF_DDL, is_decided=piece.is_override)

    def _judge(
        self, found: Sequence[Cascade], what: str, hint: str, *, is_decided: bool = False
    ) -> None:
        if not found or self._are_logged():
            return
        if self._policy == STOP and not is_decided:
            names = "; ".join(map(str, found[:_NAMED_MAX]))
            more = len(found) - _NAMED_MAX
            raise NeedsOperator(
                f"{what}: {names}" + (f" and {more} more" if more > 0 else ""),
                hint,
                Code.FOREIGN_KEY_ACTIONS,
            )
        new = [each for each in found if each not in self._reported]
        self._reported.update(new)
        if new:
            then = _REPAIRED if self._policy == REPAIR else "compare with penstock verify"
            log.warning("%s: %s: %s", what, "; ".join(map(str, new)), then)

    def on_server(
        self, address: ServerAddress, only: Collection[Name] | None = None
    ) -> list[Cascade]:
        """Return the keys of followed tables; to repair, `seen` gets those of all tables."""
        with address.session() as connection:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION sql_mode = '', sql_quote_show_create = 1")
            names = server_tables(connection) if only is None else only
            found = [
                each
                for name in names
                if self._policy == REPAIR or self.is_followed(*name)
                for each in _of_table(connection, name, is_required=self.is_followed(*name))
            ]
        self.seen.update(found)
        return [each for each in found if self.is_followed(*each.table)]

    def is_followed(self, schema: str, table: str) -> bool:
        is_copy = self._online is not None and self._online.is_copy(table)
        return self._is_replicated(schema, table) and not is_copy

    def followed_keys(self, address: ServerAddress, store: SourceStore) -> FollowedKeys | None:
        """Return the keys to follow along the stream; None if nothing is to be repaired."""
        if self._policy != REPAIR or self._are_logged():
            return None
        return FollowedKeys(self, address, store)


_MAY_CHANGE_KEYS = re.compile(
    r"\b(FOREIGN|CONSTRAINT|REFERENCES|RENAME|CHANGE|DROP|REPLACE)\b", re.IGNORECASE
)
_MAY_ADD_KEYS = re.compile(r"\bREFERENCES\b", re.IGNORECASE)
_REFRESH_S = 60.0


class FollowedKeys:
    """The cascading keys of a server at the place of its stream, never too few; for one thread.

    They are stored before the source's checkpoint passes a statement that adds some. Keys go when
    all are read again from the server, at a time when its binlog ended at E: if no statement that
    may change keys is between the place of the stream then and E, these are the keys up to E. They
    replace the others once the stored checkpoint is beyond E, as nothing before is read again.
    """

    def __init__(self, cascades: Cascades, address: ServerAddress, store: SourceStore) -> None:
        self._cascades = cascades
        self._address = address
        self._store = store
        stored = json.loads(store.keys() or b"[]")
        before = ForeignKeys(map(Cascade.of_fields, stored)) | ForeignKeys(cascades.seen)
        self._stored: frozenset[Cascade] = frozenset()
        self._next: tuple[ForeignKeys, tuple[int, int]] | None = None
        self._is_stale = False
        self._read_s = time.monotonic()
        self._found = before
        self._found |= self._read()
        self._save()

    def effects(self, parent: Name) -> Effects | None:
        return self._found.effects(parent, self._cascades.is_followed)

    def is_followed(self, schema: str, table: str) -> bool:
        return self._cascades.is_followed(schema, table)

    def after(self, statement: Statement, parsed: Sequence[Parsed] | None, schema: str) -> bool:
        """Follow a statement, None if it is unreadable; return whether the keys have changed."""
        text = statement.query.statement.decode("latin1")
        if not _MAY_CHANGE_KEYS.search(text):
            return False
        before, self._next, self._is_stale = self._found, None, True
        for each in parsed or ():
            self._found = self._found.after(each, schema, statement.dialect)
        if parsed is None and _MAY_ADD_KEYS.search(text):
            self._found |= self._read()
        self._save()
        return self._found is not before

    def refresh(self) -> None:
        """Read the keys again if statements may have removed some; call it when nothing else is."""
        if self._is_stale and time.monotonic() - self._read_s >= _REFRESH_S:
            self._read()

    def passed(self, stored: Location) -> bool:
        """Forget the keys that are gone, given the stored place; return whether any are."""
        if self._next is None or (stored.file.number, stored.position) < self._next[1]:
            return False
        (found, _), self._next = self._next, None
        if found.keys == self._found.keys:
            return False
        self._found = found
        self._save()
        return True

    def switched(self) -> None:
        """Another server or history follows, whose places say nothing about this one's."""
        self._next = None
        self._found |= self._read()
        self._save()

    def _read(self) -> ForeignKeys:
        cascades = self._cascades
        cascades.seen.clear()
        cascades.on_server(self._address)
        found = ForeignKeys(cascades.seen)
        with self._address.session() as connection:
            end = master_status(connection, Flavor.of_version(version_of(connection)))
        self._next, self._is_stale, self._read_s = (found, end.floor), False, time.monotonic()
        return found

    def _save(self) -> None:
        if self._found.keys != self._stored:
            keys = sorted(map(asdict, self._found.keys), key=repr)
            self._store.save_keys(json.dumps(keys, ensure_ascii=False))
            self._stored = self._found.keys


def _of_table(connection: Connection, name: Name, *, is_required: bool) -> list[Cascade]:
    try:
        sql = show_create(connection, name)
    except pymysql.err.MySQLError as error:
        if error.args[0] == _NO_TABLE or not is_required:
            return []  # It was dropped after it was listed: the binlog has the DROP.
        raise
    try:
        return cascades_of_table(name, sql)
    except NeedsOperator as error:
        if not is_required:
            return []
        raise NeedsOperator(f"{'.'.join(name)}: {error.problem}", error.hint, error.code) from error

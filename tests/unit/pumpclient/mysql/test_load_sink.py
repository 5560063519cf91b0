"""A load's session in the downstream: what is sent again, and when it is known to be there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymysql
import pytest

from penstock.errors import NeedsOperator, Retryable
from pumpclient.mysql.load.sink import SinkOptions, SinkSession, lock_name
from pumpclient.mysql.load.text_rows import SqlRows, TextRows
from pumpclient.mysql.protocol.server import ServerAddress

LOST = pymysql.err.OperationalError(2013, "Lost connection")
DEADLOCK = pymysql.err.OperationalError(1213, "Deadlock found")
DUPLICATE = pymysql.err.IntegrityError(1062, "Duplicate entry '1' for key 'PRIMARY'")
READER = TextRows((), lambda data, at, out: (at, True), bytes)


class Server:
    """Answers inserts with what `answers` has, errors too; counts connections."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.sent: list[bytes] = []
        self.is_locked = False

    def connect(self, _: object) -> Connection:
        self.connections += 1
        return Connection(self)


class Connection:
    def __init__(self, server: Server) -> None:
        self.server = server
        self._sock: object | None = object()
        self.found: list[tuple[Any, ...]] = []

    def cursor(self) -> Connection:
        return self

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, sql: str, _: object = None) -> None:
        is_lock = "GET_LOCK" in sql
        self.found = [(0 if self.server.is_locked else 1,)] if is_lock else [(1000,)]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.found

    def query(self, sql: bytes) -> None:
        self.server.sent.append(sql)
        answer = self.server.answers.pop(0)
        if answer is not None:
            raise answer

    def _force_close(self) -> None:
        self._sock = None


Opened = Callable[..., SinkSession]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    def opened(server: Server, *, may_commit: bool = True, **options: Any) -> SinkSession:
        monkeypatch.setattr(ServerAddress, "connect", lambda self: server.connect(self))
        sink_options = SinkOptions(ServerAddress("host"), again_s=0, **options)
        return SinkSession(sink_options, [lock_name(1, "a", 0)], lambda: may_commit)

    return opened


def way(*, is_known_by_key: bool = True) -> SqlRows:
    return SqlRows(READER, b"INSERT INTO t VALUES ", is_known_by_key)


def test_rows_in_doubt_are_sent_again_and_a_duplicate_key_says_that_they_are_there(
    opened: Opened,
) -> None:
    server = Server(LOST, DUPLICATE, LOST, LOST, None)
    session = opened(server)
    for _ in range(2):
        session.insert(way(), [b"(1)", b"(2)"])
    assert server.sent == [b"INSERT INTO t VALUES (1),(2)"] * 5
    assert server.connections == 4


def test_a_deadlock_left_nothing_so_that_a_table_without_key_continues_too(opened: Opened) -> None:
    server = Server(DEADLOCK, None, DEADLOCK, DUPLICATE)
    session = opened(server)
    session.insert(way(is_known_by_key=False), [b"(1)"])
    with pytest.raises(NeedsOperator, match="refuses rows"):
        session.insert(way(), [b"(1)"])
    assert server.connections == 1


@pytest.mark.parametrize(("is_known_by_key", "is_shared"), [(False, False), (True, True)])
def test_rows_in_doubt_are_not_sent_again_where_nothing_would_show_them(
    opened: Opened, is_known_by_key: bool, is_shared: bool
) -> None:
    server = Server(LOST)
    with pytest.raises(Retryable, match="Lost connection"):
        opened(server, is_shared=is_shared).insert(way(is_known_by_key=is_known_by_key), [b"(1)"])
    assert len(server.sent) == 1


def test_nothing_is_sent_by_who_has_lost_the_source_nor_what_is_too_large(opened: Opened) -> None:
    server = Server()
    with pytest.raises(Retryable, match="another process"):
        opened(server, may_commit=False).insert(way(), [b"(1)"])
    with pytest.raises(NeedsOperator, match="1000"):
        opened(server).insert(way(), [b"(" + b"1" * 1000 + b")"])
    assert server.sent == []


def test_who_waits_too_long_or_was_interrupted_abandons_it(opened: Opened) -> None:
    session = opened(Server(LOST), retry_s=-1.0)
    with pytest.raises(Retryable):
        session.insert(way(), [b"(1)"])
    server = Server(LOST)
    session = opened(server)
    session._connection._sock = None  # type: ignore[attr-defined]
    session.interrupt()
    with pytest.raises(Retryable):
        session.insert(way(), [b"(1)"])


def test_a_session_of_an_attempt_before_keeps_the_next_one_out(opened: Opened) -> None:
    server = Server()
    server.is_locked = True
    with pytest.raises(Retryable, match="another load's session"):
        opened(server)
    assert lock_name(1, "a" * 500, 31) != lock_name(2, "a" * 500, 31)
    assert len(lock_name(1 << 63, "a" * 500, 31)) <= 64

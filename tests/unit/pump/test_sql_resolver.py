import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock import outbox
from penstock.errors import NeedsOperator, Retryable
from penstock.outbox import TABLE
from penstock.ts import compose
from pump.cluster.resolver import ROLLED_BACK, UNKNOWN, Outcome, Question, Resolution
from pump.cluster.sql_resolver import Database, SqlResolver, databases, open_resolver, opener
from pump.config import ResolverConfig

START_TS, COMMIT_TS = compose(1_000, 0), compose(1_001, 0)
KEY = outbox.new_key("shop")
T = TypeVar("T")


class Otherwise:
    """The resolver for what the databases know nothing of."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.closed = False

    async def resolve(self, question: Question) -> Resolution:
        self.asked.append(question)
        return UNKNOWN

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "shop.db"
    with sqlite3.connect(found) as connection:
        outbox.create_table(connection)
    connection.close()
    return found


def config(*urls: object, **settings: Any) -> ResolverConfig:
    return ResolverConfig(kind="sql", url=tuple(map(str, urls)), timeout_s=0.05, **settings)


def run(resolver: Any, use: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    async def main() -> T:
        try:
            return await use(resolver)
        finally:
            await resolver.close()

    return asyncio.run(main())


def ask(resolver: Any, *questions: Question) -> list[Resolution | BaseException]:
    async def use(resolver: Any) -> list[Resolution | BaseException]:
        asked = [resolver.resolve(question) for question in questions]
        answers: list[Resolution | BaseException] = await asyncio.gather(
            *asked, return_exceptions=True
        )
        return answers

    return run(resolver, use)


def question(key: bytes = KEY, start_ts: int = START_TS, waited_s: float = 1.0) -> Question:
    return Question(start_ts, key, 0, waited_s)


def test_a_row_is_a_commit(path: Path) -> None:
    with sqlite3.connect(path) as writer:
        outbox.put(writer, TABLE, KEY, START_TS, COMMIT_TS)
    writer.close()
    resolver = open_resolver(config(f"sqlite:///{path}"), Otherwise())
    assert ask(resolver, question()) == [Resolution(Outcome.COMMITTED, COMMIT_TS)]


def test_no_row_is_a_rollback_once_the_writer_was_silent_for_long_enough(path: Path) -> None:
    resolver = open_resolver(config(f"sqlite:///{path}", fence_after_s=5), Otherwise())
    early, late = question(waited_s=4.9), question(waited_s=5.0)

    async def one_after_the_other(resolver: Any) -> list[Resolution]:
        return [await resolver.resolve(q) for q in (early, late, early)]

    assert run(resolver, one_after_the_other) == [UNKNOWN, ROLLED_BACK, ROLLED_BACK]


def test_a_writer_at_work_is_not_fenced_and_does_not_make_the_database_bad(path: Path) -> None:
    writer = sqlite3.connect(path)
    outbox.put(writer, TABLE, KEY, START_TS, COMMIT_TS)
    resolver = open_resolver(config(f"sqlite:///{path}"), Otherwise())

    async def use(resolver: Any) -> list[Resolution]:
        with pytest.raises(Retryable, match="the writer has its outbox row in"):
            await resolver.resolve(question(waited_s=60))
        writer.commit()
        return [await resolver.resolve(question(waited_s=60))]

    assert run(resolver, use) == [Resolution(Outcome.COMMITTED, COMMIT_TS)]
    writer.close()


def test_what_has_no_outbox_key_is_for_somebody_else(path: Path) -> None:
    otherwise = Otherwise()
    resolver = open_resolver(config(f"sqlite:///{path}"), otherwise)
    others = [question(b""), question(b"a primary key")]
    assert ask(resolver, *others) == [UNKNOWN, UNKNOWN]
    assert otherwise.asked == others
    assert otherwise.closed


def test_several_databases_are_distinguished_by_the_name_in_the_key(
    path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "crm.db"
    with sqlite3.connect(other) as writer:
        outbox.create_table(writer)
        key = outbox.new_key("crm")
        outbox.put(writer, TABLE, key, START_TS, COMMIT_TS)
    writer.close()
    urls = (f"crm=sqlite:///{other}", f"shop=sqlite:///{path}")
    late = 60.0
    found = ask(
        open_resolver(config(*urls), Otherwise()),
        question(key, waited_s=late),
        question(KEY, waited_s=late),
        question(outbox.new_key("absent"), waited_s=late),
    )
    assert found[:2] == [Resolution(Outcome.COMMITTED, COMMIT_TS), ROLLED_BACK]
    assert isinstance(found[2], NeedsOperator)
    assert "add absent=URL to resolver.url" in str(found[2])


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "gone.db"
    found = ask(open_resolver(config(f"sqlite:///{missing}"), Otherwise()), question(waited_s=60))
    assert isinstance(found[0], Retryable)
    assert "unable to open database file" in str(found[0])
    assert not missing.exists()


def test_a_database_without_the_table_decides_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    empty.touch()
    found = ask(open_resolver(config(f"sqlite:///{empty}"), Otherwise()), question(waited_s=60))
    assert isinstance(found[0], Retryable)
    assert "no such table" in str(found[0])


def test_after_a_failure_no_one_knocks_for_a_moment() -> None:
    knocks: list[int] = []

    def connect() -> Any:
        knocks.append(1)
        raise OSError("no route to host")

    database = Database("shop", TABLE, connect)
    for _ in range(5):
        with pytest.raises(Retryable, match="the database shop does not answer: no route to host"):
            database.settle(KEY, START_TS, fence=True)
    assert len(knocks) == 1


def test_a_database_that_hangs_keeps_no_other_from_answering(path: Path) -> None:
    hanging, entered = threading.Event(), threading.Event()

    def hang() -> Any:
        entered.set()
        hanging.wait(10)
        raise OSError("timed out")

    _, connect = opener(f"sqlite:///{path}", timeout_s=0.05)
    resolver = SqlResolver(
        {"crm": Database("crm", TABLE, hang), "shop": Database("shop", TABLE, connect)},
        Otherwise(),
        fence_after_s=10,
    )

    async def use(resolver: Any) -> Resolution:
        stuck = [
            asyncio.create_task(resolver.resolve(question(outbox.new_key("crm"))))
            for _ in range(300)
        ]
        await asyncio.to_thread(entered.wait, 10)
        async with asyncio.timeout(5):
            answer: Resolution = await resolver.resolve(question(waited_s=60))
        hanging.set()
        texts = [str(error) for error in await asyncio.gather(*stuck, return_exceptions=True)]
        assert sum("too many questions to the database crm" in text for text in texts) == 44
        assert sum("timed out" in text for text in texts) == 256
        return answer

    assert run(resolver, use) == ROLLED_BACK


def test_wrong_settings_say_what_would_be_right(path: Path) -> None:
    for settings, expected in [
        ({"kind": "oracle"}, "one of none, sql and tikv"),
        ({"kind": "sql"}, "kind sql needs one"),
        ({"kind": "none", "url": ("sqlite:///x",)}, "no other has one"),
        ({"timeout_s": 0}, "above zero"),
    ]:
        with pytest.raises(NeedsOperator, match=expected):
            ResolverConfig(**settings)  # type: ignore[arg-type]
    for url, expected in [
        ("postgres://host/db", "scheme 'postgres'"),
        ("sqlite://host/db", "names no file"),
        ("mysql://user:secret@host:port/db", "unreadable"),
        ("mysql://user:secret@host", "names no host or schema"),
        ("mysql://user:secret@host/db?tls=1", "unknown option 'tls'"),
    ]:
        with pytest.raises(NeedsOperator, match=expected) as caught:
            databases(config(url))
        assert "secret" not in str(caught.value)
    with pytest.raises(NeedsOperator, match="twice"):
        databases(config(f"sqlite:///{path}", f"sqlite:///{path}"))


def test_a_password_is_in_no_name() -> None:
    shown, _ = opener("mysql://me:s3cret%2C@db:3307/shop", timeout_s=1)
    assert shown == "db:3307/shop"


def test_without_one_the_time_decides() -> None:
    otherwise = Otherwise()
    assert open_resolver(ResolverConfig(), otherwise) is otherwise

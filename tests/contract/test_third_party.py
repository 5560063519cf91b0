"""Sinks of third parties: how they are found, and what they are given."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from drainer.settings.targets import PluginTarget, target_of
from drainer.sink_contract import Seen, SinkContract
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import open_sink
from drainer.sinks.third_party import PluginSink
from penstock.errors import NeedsOperator
from penstock.local.run.__main__ import main as run
from penstock.sinks import Address, Ddl, Moved, Transaction, TransactionSink
from penstock.stream import Ddl as StreamDdl
from penstock.stream import Transaction as StreamTransaction
from penstock.wire.binlog import Origin
from tests.kit.plugin import write_package
from tests.kit.sink_target import sink_target
from tests.kit.workloads.sink_stream import SinkStream, Transactions

STORES: dict[str, tuple[list[Any], str | None]] = {}
"""What each path has: elements as they were given, and the savepoint."""
ADDRESSES: list[Address] = []


class Memory(TransactionSink):
    """The sink of the tests' plug-in; its URLs are `memory:///name`."""

    def __init__(self, address: Address) -> None:
        ADDRESSES.append(address)
        if "broken" in address.options:
            raise ValueError("it is broken")
        self._path = address.path

    def load(self) -> str | None:
        return STORES.get(self._path, ([], None))[1]

    def write(
        self, changes: Sequence[Transaction | Ddl], savepoint: str, after: str | None
    ) -> None:
        made, stored = STORES.get(self._path, ([], None))
        if stored != after:
            raise Moved
        read = [shown(each) for each in changes]
        assert read == [shown(each) for each in changes], "they may be read several times"
        STORES[self._path] = ([*made, *read], savepoint)


def shown(each: Transaction | Ddl) -> tuple[Any, ...]:
    if isinstance(each, Ddl):
        return each.commit_ts, each.query
    return each.commit_ts, each, list(each.changes)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages: `memory`, which provides memory://."""
    folder = tmp_path / "packages"
    module = f"import sys\nMemory = sys.modules[{__name__!r}].Memory\n"
    write_package(folder, "penstock_memory", "memory = penstock_memory:Memory", module)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("penstock_memory", None)
    STORES.clear()
    ADDRESSES.clear()


@pytest.mark.usefixtures("packages")
class TestMemory(SinkContract):
    def url(self, folder: Path) -> str:
        return "memory:///store"

    def seen(self, url: str) -> Seen:
        made: Seen = []
        for ts, *what in STORES["/store"][0]:
            ids = [each.after["id"] for each in what[1]] if len(what) > 1 else what[0]
            made.append((ts, ids))
        return made


@pytest.mark.usefixtures("packages")
def test_a_sink_is_given_rows_by_column_name_with_their_transaction() -> None:
    stream = SinkStream()
    stream.origin = Origin(source="elsewhere", epoch=1, file=2, position=3)
    with closing(open_sink("memory:///store", cluster_id=7)) as sink:
        assert isinstance(sink, PluginSink)
        assert sink.load_checkpoint() is None
        stream.ddl(sink, "CREATE DATABASE shop")
        stream.ddl(sink, "CREATE TABLE t (id INT PRIMARY KEY, price DECIMAL(6,2), b BLOB)")
        stream.ddl(sink, "CREATE TABLE a (id INT)")
        one, two = (1, Decimal("1.50"), b"\xff"), (1, Decimal("2.50"), None)
        changes: Transactions = {
            1000: {"t": [(None, one), (one, two)], "a": [(None, (5,))]},
            1001: {"t": [(two, None)]},
        }
        batch = stream.batch_of(changes)
        sink.put(stream.messages(sink, batch), Checkpoint(1002, 2))
    (_, first, made), (_, second, gone) = STORES["/store"][0][-2:]
    assert (first.commit_ts, first.start_ts, second.commit_ts) == (1000, 999, 1001)
    assert first.tables == ("shop.t", "shop.a")
    assert first.origin == stream.origin
    assert not first.is_large
    first_row = {"id": 1, "price": Decimal("1.50"), "b": b"\xff"}
    last_row = {"id": 1, "price": Decimal("2.50"), "b": None}
    assert [(each.kind, each.table, each.before, each.after, each.key) for each in made] == [
        ("insert", "t", None, first_row, ("id",)),
        ("update", "t", first_row, last_row, ("id",)),
        ("insert", "a", None, {"id": 5}, ()),
    ]
    assert [(each.kind, each.before, each.after) for each in gone] == [("delete", last_row, None)]


@pytest.mark.usefixtures("packages")
def test_a_url_of_a_plug_in_is_parsed_for_its_factory(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("p:w\n")
    url = f"memory://me@host:7/a%20b?x=1&y=&password-file={secret}"
    with closing(open_sink(url, cluster_id=7)):
        assert ADDRESSES[-1] == Address(
            scheme="memory", place="host:7", path="/a b", user="me", password="p:w",
            options={"x": "1", "y": ""}, cluster_id=7,
        )  # fmt: skip
    assert "p:w" not in repr(ADDRESSES)
    target = sink_target(PluginTarget, "memory://me:secret@host/a?x=1")
    assert (target.label, target.output) == ("memory host/a", "memory host/a x=1")
    assert target.takes_events


def test_types_of_a_sink_are_those_of_a_reader() -> None:
    assert issubclass(StreamTransaction, Transaction)
    assert issubclass(StreamDdl, Ddl)


@pytest.mark.usefixtures("packages")
def test_an_unknown_scheme_names_the_plug_ins_and_how_to_get_more() -> None:
    with pytest.raises(NeedsOperator, match="no sink for downstream scheme 'memori'") as error:
        target_of("memori://h/")
    assert error.value.hint == "did you mean memory://?"
    with pytest.raises(NeedsOperator, match=r"installed plug-ins have memory://; .*pip install"):
        target_of("oracle://h/")


def test_a_plug_in_that_fails_is_an_error_with_its_package(packages: Path) -> None:
    with pytest.raises(NeedsOperator, match=r"penstock_memory 1\.0 fails: ValueError: it is brok"):
        open_sink("memory:///store?broken=1", cluster_id=0)
    write_package(packages, "lacking", "lack = lacking:Sink", "import no_such_module\n")
    with pytest.raises(NeedsOperator, match=r"lacking 1\.0 cannot be imported: .*no_such_module"):
        open_sink("lack://h/", cluster_id=0)
    write_package(packages, "odd", "odd = odd:Sink", "Sink = dict\n")
    with pytest.raises(NeedsOperator, match=r"odd 1\.0 fails: TypeError"):
        open_sink("odd://h/", cluster_id=0)


@pytest.mark.usefixtures("packages")
def test_penstock_run_accepts_a_plug_in_and_reports_one_that_fails_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--from", "app", "--data-dir", str(tmp_path / "run"), "--print-config", "--to"]
    assert run([*asked, "memory:///store?broken=1"]) == 2
    assert "penstock_memory 1.0 fails: ValueError: it is broken" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert run([*asked, "memory://me:p%3Aw@host/store"]) == 0
    shown = capsys.readouterr().out
    assert 'sink = "memory://me@host/store?password-file=' in shown
    assert "p%3Aw" not in shown


def test_no_package_takes_a_scheme_of_penstock_or_of_another(packages: Path) -> None:
    write_package(packages, "greedy", "sqlite = penstock_memory:Memory")
    with pytest.raises(NeedsOperator, match=r"greedy 1\.0 provides a sink for sqlite://, which"):
        open_sink("sqlite:///x.db", cluster_id=1)
    write_package(packages, "second", "memory = second:Other")
    with pytest.raises(NeedsOperator, match=r"keep one of these packages") as error:
        open_sink("memory:///store", cluster_id=1)
    assert "penstock_memory 1.0" in error.value.problem
    assert "second 1.0" in error.value.problem


@pytest.mark.usefixtures("packages")
def test_an_outage_is_waited_for_and_any_other_error_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = open_sink("memory:///store", cluster_id=1, retry_s_max=5)
    failures: list[Exception] = [ConnectionResetError("gone"), TimeoutError()]
    load = Memory.load

    def failing(memory: Memory) -> str | None:
        if failures:
            raise failures.pop()
        return load(memory)

    monkeypatch.setattr(Memory, "load", failing)
    with closing(sink):
        assert sink.load_checkpoint() is None
        assert not failures
        assert len(ADDRESSES) == 3, "each failure makes another sink"
        failures.append(KeyError("x"))
        with pytest.raises(NeedsOperator, match=r"penstock_memory 1\.0 fails: KeyError: 'x'"):
            sink.load_checkpoint()

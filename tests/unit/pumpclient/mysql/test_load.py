"""What of the load needs no server: chunks, rows from text, what is kept, what is said."""

import itertools
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codes import Code
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, plan_ddl
from penstock.errors import Corrupt, Malformed, NeedsOperator, Retryable
from penstock.schema.model import TableInfo
from penstock.wire.binlog import Origin
from pumpclient.delivery.group_commit import PendingTransaction
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.load import loader
from pumpclient.mysql.load.loader import Brake, LoadOptions, LoadProgress, RowWriter, _Attempt
from pumpclient.mysql.load.state import LoadState, read_state, write_state
from pumpclient.mysql.load.tables import (
    Key,
    Range,
    SourceTable,
    Targets,
    chunks_of,
    integer_bounds,
    packed,
    ranges_between,
)
from pumpclient.mysql.load.text_rows import sql_rows, text_rows
from pumpclient.mysql.protocol.server import BinlogPlace
from pumpclient.mysql.source.first_checkpoint import _elsewhere
from pumpclient.mysql.source.state.checkpoint import Checkpoint
from pumpclient.mysql.source.sync.transactions import CatchUp
from pumpclient.mysql.translate.ddl_pieces import Translator
from pumpclient.mysql.translate.statement_text import Dialect
from pumpclient.options import Options
from pumpclient.rows import Table
from tests.kit.wait import present
from tests.unit.penstock.ddl_session import DdlSession

small = st.integers(0, 4)
keys = st.tuples(small, small, small)


@given(rows=st.sets(keys), bounds=st.sets(keys), width=st.integers(1, 3))
def test_ranges_have_every_key_once_however_they_are_cut(
    rows: set[tuple[int, int, int]], bounds: set[tuple[int, int, int]], width: int
) -> None:
    names = ["a", "b", "c"][:width]
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (a, b, c)")
    database.executemany("INSERT INTO t VALUES (?, ?, ?)", sorted(rows))
    cuts: list[Key] = sorted({bound[:width] for bound in bounds})
    found: list[tuple[int, int, int]] = []
    for range_ in ranges_between(cuts):
        condition, values = range_.condition(names)
        sql = f"SELECT * FROM t WHERE {condition or 1}".replace("%s", "?")
        part = database.execute(sql, values).fetchall()
        for row in part:
            assert range_.after is None or row[:width] > range_.after
            assert range_.until is None or row[:width] <= range_.until
        found += part
    database.close()
    assert sorted(found) == sorted(rows)


@given(st.integers(-(1 << 63), (1 << 64) - 1), st.integers(0, 1 << 64), st.integers(1, 50))
def test_integer_bounds_are_within_and_grow(low: int, span: int, count: int) -> None:
    bounds = [key[0] for key in integer_bounds(low, low + span, count)]
    assert bounds == sorted(set(bounds))
    assert all(low <= bound < low + span for bound in bounds)
    assert len(bounds) == min(count, span + 1) - 1


def test_a_table_without_rows_is_one_chunk() -> None:
    empty = SourceTable("s", "t", "InnoDB", 0, ("id",), ("int",))
    for estimated, count in ((0, 1), (1, 1), (10, 1), (11, 2), (35, 4)):
        some = replace(empty, rows_estimated=estimated)
        assert len(list(chunks_of(lambda sql: [(1, 1000)], some, 10))) == count
    unkeyed = replace(empty, key=(), rows_estimated=99)
    assert list(chunks_of(lambda sql: [], unkeyed, 10)) == [Range()]
    assert Range().condition(["a"]) == ("", ())


@given(st.lists(st.lists(st.binary(max_size=30), min_size=1, max_size=5)), st.integers(1, 60))
def test_groups_keep_order_and_bound(blocks: list[list[bytes]], bytes_max: int) -> None:
    groups = list(packed(iter(blocks), bytes_max))
    assert [row for g in groups for row in g] == [row for b in blocks for row in b]
    assert all(len(g) == 1 or sum(map(len, g)) <= bytes_max for g in groups)
    assert all(groups)


def table(columns: str) -> TableInfo:
    catalog = Catalog()
    ids = iter(range(1, 100))
    for sql in ("CREATE DATABASE s", f"CREATE TABLE s.t ({columns})"):
        for job in plan_ddl(sql, None, catalog, lambda: next(ids)):
            catalog.apply(job)
    found = catalog.table("s", "t")
    assert found is not None
    return found


def packet(*texts: bytes | None) -> bytes:
    payload = b""
    for text in texts:
        if text is None:
            payload += b"\xfb"
        elif len(text) < 251:
            payload += bytes([len(text)]) + text
        else:
            payload += b"\xfc" + len(text).to_bytes(2, "little") + text
    return len(payload).to_bytes(3, "little") + b"\0" + payload


EOF = b"\x05\0\0\0\xfe\0\0\0\0"
COLUMNS = (
    "n INT, u BIGINT UNSIGNED, v VARCHAR(400), b VARBINARY(9), d DECIMAL(9,2), t DATETIME(3),"
    " f FLOAT, e ENUM('p','q'), i TIME, g INT AS (n + 1) VIRTUAL, l TINYINT NOT NULL"
)
VALUES: tuple[Any, ...] = (
    -5000, 2**64 - 1, "é" * 150, b"\0\xff", "-1.50", "2026-11-21 08:00:00.125", 0.5, 2,
    "-01:02:03",
)  # fmt: skip
TEXTS = (b"-5000", b"18446744073709551615", "é".encode() * 150, b"\0\xff", b"-1.50",
         b"2026-11-21 08:00:00.125", b"0.5", b"2", b"-01:02:03")  # fmt: skip


@pytest.mark.parametrize(
    "key", ["id INT PRIMARY KEY", "id INT", "id BIGINT UNSIGNED PRIMARY KEY",
            "id VARCHAR(9) PRIMARY KEY"]
)  # fmt: skip
def test_text_becomes_the_bytes_that_the_codec_makes(key: str) -> None:
    info = table(f"{key}, {COLUMNS}")
    is_text = "VARCHAR" in key
    id_: Any = "k" if is_text else 7
    reader = text_rows(info)
    assert "`g`" not in reader.columns
    assert "`e` + 0" in reader.columns
    data = packet(b"k" if is_text else b"7", *TEXTS, b"3") + packet(
        b"k" if is_text else b"7", *[None] * 9, b"0"
    )
    out: list[bytes] = []
    for end in range(len(data)):  # Cut anywhere, it continues where the last whole row ended.
        out = []
        at, is_ended = reader.read(data[:end], 0, out)
        assert not is_ended
        rest, _ = reader.read(data[at:] + EOF, 0, out)
        assert at + rest == len(data)
    codec = RowCodec(info)
    decoded = [codec.decode_insert(row) for row in out]
    assert decoded == [
        codec.decode_insert(codec.encode_insert([id_, *VALUES, None, 3], rowid=1)),
        codec.decode_insert(codec.encode_insert([id_, *[None] * 10, 0], rowid=1)),
    ]
    if key.startswith("id INT P"):
        assert out[0] == codec.encode_insert([id_, *VALUES, None, 3])
    assert reader.row(data[4 : 4 + int.from_bytes(data[:3], "little")])[1:] == out[0][1:] or (
        key == "id INT"
    )
    assert reader.read(EOF, 0, []) == (0, True)
    with pytest.raises(Malformed, match=r"'l'.* is NOT NULL"):
        reader.read(packet(b"7", *[None] * 10), 0, [])


@pytest.mark.parametrize("text", [b"\xed\xa0\xbd", b"a" * 300 + b"\xed\xb8\x80", b"\xff"])
@pytest.mark.parametrize("key", ["id", "v(9)"])
def test_text_that_is_not_utf8_is_refused_by_a_load_and_not_left_to_a_drainer(
    text: bytes, key: str
) -> None:
    columns = "id INT, v VARCHAR(400) CHARACTER SET ucs2, b VARBINARY(400)"
    reader = text_rows(table(f"{columns}, PRIMARY KEY ({key})"))
    with pytest.raises(NeedsOperator, match=r"'v'.* is not valid UTF-8") as refused:
        reader.read(packet(b"1", text, b"x"), 0, [])
    assert "VARBINARY" in refused.value.hint
    out: list[bytes] = []
    reader.read(packet(b"1", "é\ud7ff".encode(), text), 0, out)
    assert len(out) == 1


@pytest.mark.parametrize("key", ["id", "d", "v(2), t"])
def test_a_date_that_no_calendar_has_is_loaded_as_the_server_holds_it(key: str) -> None:
    info = table(f"id INT, d DATE, t DATETIME(2), v VARCHAR(9), PRIMARY KEY ({key})")
    out: list[bytes] = []
    text_rows(info).read(packet(b"1", b"2024-02-30", b"2023-02-29 10:00:00.50", b"key"), 0, out)
    row = (1, "2024-02-30", "2023-02-29 10:00:00.50", "key")
    assert RowCodec(info).decode_insert(out[0]) == row
    with pytest.raises(Malformed, match="does not exist"):
        text_rows(info).read(packet(b"1", b"2024-13-30", b"2024-01-01", b"key"), 0, out)


EDGES = [sign * (1 << bits) + by for bits in (0, 6, 7, 13, 14, 20, 27, 28, 31) for by in (-1, 0, 1)
         for sign in (-1, 1)]  # fmt: skip


@pytest.mark.parametrize("unsigned", ["", " UNSIGNED"])
def test_numbers_of_every_length_become_what_the_codec_makes(unsigned: str) -> None:
    info = table(f"id BIGINT{unsigned} PRIMARY KEY, n BIGINT{unsigned}, m MEDIUMINT{unsigned}")
    reader, codec = text_rows(info), RowCodec(info)
    for number in EDGES:
        if unsigned and number < 0:
            continue
        text = b"%d" % number
        is_small = -(1 << 23) <= number < 1 << 23
        data = packet(text, text, text if is_small else None)
        out: list[bytes] = []
        reader.read(data, 0, out)
        assert out == [codec.encode_insert([number, number, number if is_small else None])]
    with pytest.raises(Malformed, match="'m'"):
        reader.read(packet(b"1", b"1", b"20000000"), 0, [])


def test_text_becomes_rows_of_an_insert_with_quotes_doubled_and_bytes_marked() -> None:
    way = sql_rows(table(f"id BIGINT PRIMARY KEY, {COLUMNS}, `q``%d` LONGTEXT"), ("s`x", "t"))
    assert way.head == (
        b"INSERT INTO `s``x`.`t` (`id`,`n`,`u`,`v`,`b`,`d`,`t`,`f`,`e`,`i`,`l`,`q``%d`) VALUES "
    )
    texts = [b"7", b"-5", b"1", b"it's \\", b"\0'", b"-1.50", b"2026-11-21 08:00:00.125", b"-0",
             b"2", b"-01:02:03", b"3", b"x" * 300]  # fmt: skip
    out: list[bytes] = []
    way.reader.read(packet(*texts) + packet(b"8", *[None] * 9, b"0", None), 0, out)
    whole, nulls = out
    assert whole == (
        b"(7,-5,1,'it''s \\\\',_binary'\0''',-1.50,'2026-11-21 08:00:00.125','-0',2,'-01:02:03',3,'"
        + b"x" * 300
        + b"')"
    )
    assert nulls == b"(8" + b",NULL" * 9 + b",0,NULL)"
    assert way.insert([nulls, nulls]) == way.head + nulls + b"," + nulls
    one = sql_rows(table("id INT PRIMARY KEY"), ("s", "t"))
    one.reader.read(packet(b"1"), 0, out)
    assert out[-1] == b"(1)"
    assert one.is_known_by_key
    assert not sql_rows(table("id INT"), ("s", "t")).is_known_by_key


def test_a_state_is_read_as_it_was_written_and_damage_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "new" / "load.json"
    assert read_state(path) is None
    state = LoadState(source="a", epoch=3).next_attempt(BinlogPlace("bin.000009", 4, "0-1-2"))
    again = state.next_attempt(BinlogPlace("bin.000010", 4))
    assert again.start == state.start
    assert state.origin(1 << 39).place < again.origin(1).place < (3, 1, 0)
    ended = replace(again, rows={("shop", "t"): 5}, started="2026", ended="2027", is_complete=True)
    for each in (state, again, LoadState(source="a", epoch=3), ended):
        write_state(path, each)
        assert read_state(path) == each
    for text, error in (("{", Corrupt), ('{"version": 2}', NeedsOperator),
                        ('{"version": 1}', Corrupt)):  # fmt: skip
        path.write_text(text)
        with pytest.raises(error):
            read_state(path)


def _load(epoch: int, **floors: str) -> LoadState:
    split = {name: at.split(":") for name, at in floors.items()}
    loaded = {("s", name): BinlogPlace(file, int(at)) for name, (file, at) in split.items()}
    return LoadState(source="db", epoch=epoch, loaded=loaded)


WITHIN = Checkpoint(epoch=7, server="0-1", done="bin|000001.000001:4", loaded="2:10")


def test_what_was_loaded_is_left_out_of_the_binlog_up_to_its_floor() -> None:
    load = _load(7, a="bin.000001:50", b="bin.000002:10")
    assert load.after == "2:10"
    catch_up, file = CatchUp(load, WITHIN), WITHIN.place
    catch_up.at = file.at(50)
    assert catch_up.has(("s", "a"))
    assert not catch_up.has(("s", "new"))
    assert catch_up.has(("s", "a"), ("s", "b"))
    catch_up.at = file.at(51)
    assert not catch_up.has(("s", "a"))
    with pytest.raises(NeedsOperator, match=r"s\.a, s\.b"):
        catch_up.has(("s", "a"), ("s", "b"))


@pytest.mark.fault(
    "a source's data folder is lost or older while its binlog has not passed a load of"
    " several attempts",
    "refused with PS-8404: rows of the load would come twice",
    cases="0",
)
def test_a_source_within_its_load_starts_only_with_what_the_load_has() -> None:
    load = _load(7, a="bin.000001:50", b="bin.000002:10")
    within = replace(WITHIN, done="bin|000001.000002:4")
    assert CatchUp(load, within).has(("s", "b"))
    for others in (None, _load(7, a="bin.000001:50"), replace(load, epoch=6)):
        with pytest.raises(NeedsOperator, match="would come twice"):
            CatchUp(others, within)
        passed = replace(within, done="bin|000001.000002:10")
        assert not CatchUp(others, passed).has(("s", "b"))
    assert not CatchUp(None, replace(within, loaded="")).is_active  # Of an older version.
    new_server: Any = SimpleNamespace(uuid="0-2")
    with pytest.raises(NeedsOperator, match="before its binlog had passed the load"):
        _elsewhere(within, "bin.000001", new_server, 7, is_known=True)


def test_progress_says_share_rate_and_rest_and_the_brake_keeps_a_rate() -> None:
    now_s = [0.0]
    said: list[str] = []
    big, small = SourceTable("s", "big", "InnoDB", 800), SourceTable("s", "small", "InnoDB", 200)
    loaded = {("s", "before"): 7}
    progress = LoadProgress([big, small], said.append, 5.0, lambda: now_s[0], loaded)
    assert progress.facts() == {
        "tables": 3, "tables_done": 1, "rows": 1007, "rows_done": 7, "seconds_left": None,
        "running": [],
    }  # fmt: skip
    progress.add(small, 100, 1000)
    now_s[0] = 10.0
    progress.add(big, 400, 10**7)
    assert said == [" 50 %  500 rows, 0 of 2 tables, 50 rows/s, 1.0 MB/s, about 10 s left"]
    assert progress.facts()["running"] == [
        {"table": "s.small", "rows": 200, "rows_done": 100},
        {"table": "s.big", "rows": 800, "rows_done": 400},
    ]
    progress.done(small)
    assert (progress.facts()["rows"], progress.facts()["seconds_left"]) == (907, 8.0)
    progress.done(big)  # The server had counted more rows than there were.
    assert progress.facts()["running"] == []
    assert progress.line().startswith("100 %  500 rows, 2 of 2 tables, 50 rows/s,")
    assert progress.line().endswith("about 0 s left")

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    brake = Brake(1000, lambda: now_s[0], sleep)
    for _ in range(5):
        brake.take(500)
    assert now_s[0] == pytest.approx(12.0)
    Brake(None, sleep=sleep).take(10**9)
    assert now_s[0] == pytest.approx(12.0)


def _attempt(state: LoadState, here: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run an attempt of a load into one table, with `here` on the server; return what it did."""
    found: dict[str, Any] = {"said": []}
    tables = [SourceTable("shop", name, "InnoDB", 0) for name in here]
    monkeypatch.setattr(loader, "base_tables", lambda planner: tables)
    monkeypatch.setattr(loader, "views", lambda planner: [])
    monkeypatch.setattr(loader, "check_engines", lambda tables: None)
    translator = SimpleNamespace(
        is_replicated=lambda *name: True, target=lambda *name: ("shop", "all")
    )
    attempt = _Attempt.__new__(_Attempt)
    attempt._options = LoadOptions(translator=cast("Any", translator), into_existing=False)
    attempt._state, attempt._place = state, BinlogPlace("bin.000001", 900)
    attempt._planner = cast("Any", SimpleNamespace(fetch=None))
    attempt._locks = cast("Any", SimpleNamespace(tables=()))
    monkeypatch.setattr(loader, "write_state", lambda path, state: None)
    attempt._path = Path()
    attempt._say = found["said"].append
    attempt._targets = cast("Any", SimpleNamespace(
        check_definitions=lambda tables: None,
        check_free=lambda tables, stale: None,
        drop=lambda stale, say: found.update(dropped=set(stale)),
    ))  # fmt: skip
    monkeypatch.setattr(attempt, "_created", lambda tables: tables)
    monkeypatch.setattr(
        attempt, "_read", lambda jobs: found.update(read={job.full_name for job in jobs})
    )
    found["state"] = attempt.run()
    return found


def test_tables_that_go_into_one_are_loaded_again_all_of_them_when_one_was_not_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = ("shop", "one"), ("shop", "two")
    at = BinlogPlace("bin.000001", 4)
    state = LoadState(
        source="a", epoch=1, attempt=2, start=at, begun=frozenset({one, two}), loaded={one: at}
    )
    found = _attempt(state, ["one", "two"], monkeypatch)
    assert found["dropped"] == found["read"] == {one, two}


def test_a_table_that_is_gone_when_all_are_loaded_again_stays_downstream_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = ("shop", "one"), ("shop", "two")
    asked = LoadState(source="a", epoch=1, begun=frozenset({one, two}))
    first = asked.next_attempt(BinlogPlace("bin.000001", 4))
    found = _attempt(first, ["one"], monkeypatch)
    assert (found["dropped"], found["read"]) == ({one}, {one})
    assert found["said"] == ["shop.two is not on the server any more: it stays here"]
    assert two not in found["state"].loaded
    later = first.next_attempt(BinlogPlace("bin.000001", 9))
    assert _attempt(later, ["one"], monkeypatch)["dropped"] == {one, two}


def test_a_load_reads_the_catalog_once_to_look_for_all_its_targets() -> None:
    session = DdlSession("CREATE TABLE t (a INT)", "CREATE VIEW v AS SELECT a FROM t")
    reads: list[int] = []

    def catalog() -> Catalog:
        reads.append(len(reads))
        return session.catalog

    client = SimpleNamespace(session=SimpleNamespace(schemas=SimpleNamespace(catalog=catalog)))
    targets = Targets(
        cast("Any", client),
        Translator(),
        cast("Any", None),
        Dialect(Flavor.MARIADB, 101100),
        cast("Any", None),
        lambda: None,
    )
    others = [SourceTable("d", f"t{at}", "InnoDB", 0) for at in range(50)]
    targets.check_free([*others, SourceTable("d", "v", "InnoDB", 0)], [])
    assert reads == [0]
    mine = [SourceTable("d", "T", "InnoDB", 0)]
    with pytest.raises(NeedsOperator, match="is there already"):
        targets.check_free(mine, [])
    targets.check_free(mine, [("d", "T")])


def test_many_tables_are_shown_together_and_created_many_under_one_fence() -> None:
    shown: list[int] = []
    done: list[list[str]] = []

    def fetch(sql: str) -> list[tuple[str, str]]:
        names = [path.rpartition("`.`")[2] for path in sql.split("; ")]
        shown.append(len(names))
        return [(name[:-1], f"CREATE TABLE `{name} (id INT PRIMARY KEY)") for name in names]

    def execute_ddls(statements: list[tuple[str, Origin]]) -> list[int]:
        done.append([sql for sql, _ in statements])
        return [len(done)]

    def check_stopped() -> None:
        if len(done) == 4:
            raise Retryable("stopped", Code.CLOSED)

    numbers = itertools.count(1)
    session = DdlSession("CREATE TABLE t7 (a INT)")
    schemas = SimpleNamespace(catalog=lambda: session.catalog)
    client = SimpleNamespace(session=SimpleNamespace(schemas=schemas), execute_ddls=execute_ddls)
    targets = Targets(
        cast("Any", client),
        Translator(),
        fetch,
        Dialect(Flavor.MARIADB, 101100),
        lambda: LoadState(source="a", epoch=1).origin(next(numbers)),
        check_stopped,
    )
    targets.check_definitions([SourceTable("d", f"t{at}", "InnoDB", 0) for at in range(251)])
    assert shown == [100, 100, 51]
    targets.create()  # One of them is there.
    assert [len(each) for each in done] == [100, 100, 50]
    assert targets.last_ddl_ts == 3
    made = [sql.partition(" (")[0] for each in done for sql in each]
    assert made == [f"CREATE TABLE `d`.`t{at}`" for at in range(251) if at != 7]
    targets.drop([("d", "t7"), ("d", "t8")], lambda text: None)
    assert done[3] == ["DROP TABLE `d`.`t7`"]
    with pytest.raises(Retryable, match="stopped"):
        targets.drop([("d", "t7")], lambda text: None)


def test_small_transactions_are_committed_in_groups_and_a_large_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups: list[list[int]] = []
    spooled: list[int] = []

    def submit(group: list[PendingTransaction], done: object) -> None:
        places = [present(each.origin).position for each in group]
        groups.append(places)
        spooled.extend(places if group[0].changes.spool_file is not None else ())
        for each in group:
            each.changes.close()

    writer = SimpleNamespace(submit=submit, drain=lambda: None, close=lambda: None)
    monkeypatch.setattr(loader, "GroupWriter", lambda *arguments, **named: writer)
    (found,) = DdlSession("CREATE TABLE t (id INT PRIMARY KEY, v BLOB)").catalog.tables("d")
    table = Table(*found)
    session = SimpleNamespace(
        options=Options(spill_bytes=400), schemas=SimpleNamespace(table_by_id=lambda _: table)
    )
    made = RowWriter(cast("Any", session), cast("Any", None), lambda: True)
    for position, size in enumerate((40, 40, 40, 150, 10, 10), 1):
        origin = Origin(source="a", epoch=1, file=0, position=position)
        made.write(table, [table.codec.encode_insert((1, b"x" * (size - 8)))], origin)
    assert groups == [[1, 2], [3], [4]]
    made.drain()
    assert groups[3:] == [[5, 6]]
    assert spooled == [4]
    made.write(table, [b""], Origin(source="a", epoch=1, file=0, position=7))
    made.close()
    assert len(groups) == 4

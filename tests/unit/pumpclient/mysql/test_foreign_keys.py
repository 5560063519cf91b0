"""Which tables the rows of a parent may change by foreign keys, and what is noted of it."""

from collections.abc import Iterable
from typing import Any

import pytest

from penstock.ddl.parse.parser import parse
from pumpclient.mysql.events.frame import EventType
from pumpclient.mysql.events.transactions import GtidFlag
from pumpclient.mysql.rows.rows_event import NO_FOREIGN_KEY_CHECKS, RowsEvent
from pumpclient.mysql.rows.table_map import TABLE_ID_SIZE, Column, Name, TableMap, WireType
from pumpclient.mysql.translate.assembler import Assembler
from pumpclient.mysql.translate.foreign_keys import (
    Cascade,
    CascadedTables,
    Effects,
    ForeignKeys,
    cascades_of_statement,
)
from pumpclient.mysql.translate.outputs import Cascaded, Finished, SkippedRows, TableChanges
from pumpclient.mysql.translate.statement_text import dialect_of
from pumpclient.mysql.translate.transcode import Transcoder
from tests.kit.mysql.row_encoding import encode_map, encode_rows, make_image
from tests.unit.pumpclient.mysql.test_transcode import made
from tests.unit.pumpclient.mysql.test_translate_transactions import (
    XID,
    at,
    event,
    maria,
    prepare,
    query,
)

MARIADB = dialect_of("10.11.6-MariaDB-log")
B = "CREATE TABLE b (id INT, a INT, CONSTRAINT f FOREIGN KEY (a) REFERENCES a (id)"
C = "CREATE TABLE c (id INT, b INT, CONSTRAINT g FOREIGN KEY (b) REFERENCES b (id)"
T = "CREATE TABLE t (id INT, p INT, CONSTRAINT h FOREIGN KEY (p) REFERENCES t (id)"


def after(*statements: str, keys: ForeignKeys | None = None) -> ForeignKeys:
    found = keys or ForeignKeys()
    for sql in statements:
        for each in parse(sql)[1]:
            found = found.after(each, "d", MARIADB)
    return found


def names(tables: Iterable[Name]) -> str:
    return " ".join(sorted(table for _, table in tables))


def reached(keys: ForeignKeys, parent: str) -> dict[str, str]:
    """Return the tables by what is done to the parent: DELETE, or the updated column."""
    found = keys.effects(("d", parent), lambda schema, table: table != "hidden")
    if found is None:
        return {}
    return {"DELETE": names(found.deleted)} | {k: names(v) for k, v in found.updated.items()}


@pytest.mark.parametrize(
    ("statements", "parent", "tables"),
    [
        ([f"{B} ON DELETE CASCADE)"], "a", {"DELETE": "b"}),
        ([f"{B} ON UPDATE SET NULL)"], "a", {"DELETE": "", "id": "b"}),
        ([f"{B} ON DELETE RESTRICT)", f"{C} ON DELETE CASCADE)"], "a", {}),
        ([f"{B} ON DELETE CASCADE)", f"{C} ON DELETE SET NULL)"], "a", {"DELETE": "b c"}),
        ([f"{B} ON DELETE SET NULL)", f"{C} ON DELETE CASCADE)"], "a", {"DELETE": "b"}),
        ([f"{B} ON UPDATE CASCADE)", f"{C} ON UPDATE CASCADE)"], "a", {"DELETE": "", "id": "b"}),
        ([f"{B} ON UPDATE CASCADE)", C.replace("(id)", "(a)") + " ON UPDATE CASCADE)"], "a",
         {"DELETE": "", "id": "b c"}),
        ([f"{T} ON DELETE CASCADE)"], "t", {"DELETE": "t"}),
        ([f"{B} ON DELETE CASCADE)".replace("TABLE b", "TABLE hidden"),
          f"{C} ON DELETE CASCADE)".replace("REFERENCES b", "REFERENCES hidden")], "a",
         {"DELETE": "c"}),
        ([f"{B} ON DELETE CASCADE)".replace("TABLE b", "TABLE hidden")], "a", {}),
        (["CREATE TABLE b (a INT REFERENCES a ON UPDATE CASCADE)"], "a", {"DELETE": "", "": "b"}),
    ],
)  # fmt: skip
def test_a_parents_change_reaches_its_children_and_theirs(
    statements: list[str], parent: str, tables: dict[str, str]
) -> None:
    assert reached(after(*statements), parent) == tables


def test_a_key_follows_renames_and_is_never_lost() -> None:
    keys = after(f"{B} ON DELETE CASCADE ON UPDATE CASCADE)")
    assert reached(after("RENAME TABLE b TO x", keys=keys), "a") == {"DELETE": "x", "id": "x"}
    moved = after("ALTER TABLE a RENAME TO y", keys=keys)
    # A session without checks may leave the name in the key.
    assert reached(moved, "y") == reached(moved, "a") == {"DELETE": "b", "id": "b"}
    renamed = after("ALTER TABLE a CHANGE id no INT", keys=keys)
    assert reached(renamed, "a") == {"DELETE": "b", "": "b"}
    assert after("ALTER TABLE a CHANGE id id BIGINT", "ALTER TABLE a ADD z INT", keys=keys) is keys
    assert reached(after("DROP TABLE b", keys=keys), "a") == reached(keys, "a")
    assert reached(keys, "A") == reached(keys, "a"), "some servers ignore letter case"


def test_a_key_survives_json() -> None:
    (key,) = cascades_of_statement(("d", "b"), f"{B} ON DELETE SET NULL)", MARIADB)
    fields = {
        "table": ["d", "b"], "key": "f", "actions": ["ON DELETE SET NULL"], "columns": ["a"],
        "parent": ["d", "a"], "referenced": ["id"],
    }  # fmt: skip
    assert Cascade.of_fields(fields) == key


def notes(tables: CascadedTables) -> dict[str, tuple[Any, ...]]:
    return {
        name: (each["since"], each["since_s"], each["last"], each["rows"])
        for name, each in tables.tables.items()
    }


def test_notes_are_made_at_ends_of_transactions_and_keep_the_first_and_last_place() -> None:
    tables = CascadedTables({})
    tables.add({("d", "b"): 2, ("d", "c"): 1})
    tables.drop_open()
    assert tables.finish("f:1", 10) == []
    tables.add({("d", "b"): 2})
    tables.add({("d", "b"): 1, ("d", "c"): 1})
    assert tables.finish("f:2", 20) == ["d.b", "d.c"]
    before = tables.tables
    tables.add({("d", "b"): 4})
    assert tables.finish("f:3", 30) == []
    assert notes(tables) == {"d.b": ("f:2", 20, "f:3", 7), "d.c": ("f:2", 20, "f:2", 1)}
    assert before["d.b"]["rows"] == 3, "the checkpoint of a group does not change"
    assert notes(CascadedTables(tables.tables)) == notes(tables)


@pytest.mark.parametrize(
    ("sql", "left"),
    [
        ("RENAME TABLE b TO x", ["d.c", "d.x"]),
        ("RENAME TABLE b TO tmp, c TO b, tmp TO c", ["d.b", "d.c"]),
        ("RENAME TABLE b TO _b_old, _b_new TO b", ["d.b", "d.c"]),
        ("ALTER TABLE b RENAME TO e.b", ["d.c", "e.b"]),
        ("DROP TABLE b, other", ["d.c"]),
        ("TRUNCATE TABLE c", ["d.b"]),
        ("DROP DATABASE d", []),
        ("ALTER TABLE b ADD x INT", ["d.b", "d.c"]),
    ],
)
def test_a_note_moves_with_its_table_and_goes_with_its_rows(sql: str, left: list[str]) -> None:
    tables = CascadedTables({})
    tables.add({("d", "b"): 2, ("d", "c"): 3})
    tables.finish("f:1", 10)
    for each in parse(sql)[1]:
        tables.follow(each, "d", lambda schema, table: not table.startswith("_"))
    assert sorted(tables.tables) == left
    if "tmp" in sql:
        assert (tables.tables["d.b"]["rows"], tables.tables["d.c"]["rows"]) == (3, 2)


COLUMNS = (Column(WireType.LONG, is_unsigned=False),) * 3
PARENT = made(["id INT PRIMARY KEY", "k INT", "v INT"])
EFFECTS = Effects(
    frozenset({("d", "b")}),
    {"id": frozenset({("d", "b"), ("d", "c")}), "k": frozenset({("d", "e")})},
)
INSERT, UPDATE, DELETE = (
    EventType.WRITE_ROWS_V1, EventType.UPDATE_ROWS_V1, EventType.DELETE_ROWS_V1,
)  # fmt: skip
FULL = 0b111


def changed(
    type_: EventType, *rows: tuple[int, ...], flags: int = 0, image: int = FULL
) -> list[bytes]:
    """Return the events of a statement on `p (id, k, v)`."""
    own = [column for n, column in enumerate(COLUMNS) if image >> n & 1]
    images = b"".join(make_image(own, row) for row in rows)
    before, after = (None if type_ is INSERT else image), (None if type_ is DELETE else image)
    body = bytearray(encode_rows(RowsEvent(type_, len(COLUMNS), before, after, images)))
    body[TABLE_ID_SIZE] |= flags
    maps = event(EventType.TABLE_MAP, encode_map(TableMap("d", "p", COLUMNS)))
    return [maps, event(type_, bytes(body))]


def noted(
    *events: bytes, effects: Effects = EFFECTS, is_wanted: bool = True, is_skipped: bool = False
) -> list[dict[str, int]]:
    """Return what each transaction may have changed."""

    def choose(table_map: TableMap) -> Transcoder | None:
        return Transcoder(table_map, PARENT) if is_wanted else None

    assembler = Assembler(
        choose,
        is_table_skipped=lambda schema, table: is_skipped,
        effects=lambda name: effects if name == ("d", "p") else None,
    )
    found: list[dict[str, int]] = []
    tables = CascadedTables({})
    for number, each in enumerate(events, 1):
        for output in assembler.take(at(number), at(number + 1), each):
            if isinstance(output, Cascaded):
                tables.add(output.rows)
            elif isinstance(output, Finished):
                tables.finish("f:1", 1)
                found.append({name[2:]: note["rows"] for name, note in tables.tables.items()})
                tables = CascadedTables({})
            else:
                assert isinstance(output, (TableChanges, SkippedRows))
    return found


@pytest.mark.parametrize(
    ("events", "tables"),
    [
        (changed(DELETE, (1, 2, 3), (4, 5, 6)), {"b": 2}),
        (changed(DELETE, (1, 2, 3), flags=NO_FOREIGN_KEY_CHECKS), {}),
        (changed(INSERT, (1, 2, 3)), {}),
        (changed(UPDATE, (1, 2, 3), (1, 2, 9)), {}),
        (changed(UPDATE, (1, 2, 3), (7, 2, 3)), {"b": 1, "c": 1}),
        (changed(UPDATE, (1, 2, 3), (7, 2, 3), flags=NO_FOREIGN_KEY_CHECKS), {}),
        (changed(UPDATE, (1, 2, 3), (1, 7, 3), (4, 5, 6), (4, 5, 7), (7, 8, 9), (8, 9, 9)),
         {"b": 1, "c": 1, "e": 2}),
        ([*changed(UPDATE, (1, 2, 3), (7, 2, 3)), *changed(DELETE, (7, 2, 3))], {"b": 2, "c": 1}),
    ],
)  # fmt: skip
def test_only_changes_that_a_key_follows_are_noted(
    events: list[bytes], tables: dict[str, int]
) -> None:
    assert noted(maria(), *events, XID) == [tables]


def test_parents_that_are_not_replicated_are_noted_too() -> None:
    deleted, updated = changed(DELETE, (1, 2, 3)), changed(UPDATE, (1, 2, 3), (1, 2, 4))
    everything = {"b": 1, "c": 1, "e": 1}
    for is_skipped in (False, True):

        def found(*events: bytes, skips: bool = is_skipped) -> list[dict[str, int]]:
            return noted(maria(), *events, XID, is_wanted=False, is_skipped=skips)

        assert found(*deleted) == [{"b": 1}]
        # Nothing names its columns, and it may be system-versioned.
        assert found(*updated) == [everything]


def test_a_column_that_is_not_known_may_be_any() -> None:
    renamed = Effects(frozenset(), {"": frozenset({("d", "b")}), "id": frozenset({("d", "c")})})
    updated = changed(UPDATE, (1, 2, 3), (1, 2, 4))
    assert noted(maria(), *updated, XID, effects=renamed) == [{"b": 1, "c": 1}]


def test_an_image_without_all_columns_may_change_any() -> None:
    parts = changed(UPDATE, (1,), (2,), image=0b100)
    assert noted(maria(), *parts, XID, is_skipped=True) == [{"b": 1, "c": 1, "e": 1}]


def test_a_prepared_transaction_is_noted_where_it_commits_and_not_where_it_rolls_back() -> None:
    name = "X'747278',X'62',1"
    events = [maria(GtidFlag.PREPARED_XA), *changed(DELETE, (1, 2, 3)), query(f"XA END {name}")]
    for verb, tables in (("COMMIT", {"b": 1}), ("ROLLBACK", {})):
        end = maria(GtidFlag.COMPLETED_XA), query(f"XA {verb} {name}")
        assert noted(*events, prepare(), *end) == [{}, tables]

"""What is known of charsets and collations is what three servers say of theirs."""

import random

import pytest

from drainer.task.sql.row_statements import fold_of
from penstock.ddl.charsets import (
    built_in,
    char_bytes_max,
    charset_of_collation,
    collation_name,
    pads,
)
from penstock.ddl.rewrite.foreign import aliases, substitutes
from penstock.local.sql_server import SqlServer
from penstock.schema.model import ColumnInfo, MysqlType

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]


@pytest.fixture(params=["mysql_server", "mariadb_new_server", "mariadb_server"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


def is_mariadb(server: SqlServer) -> bool:
    return "MariaDB" in server.query("SELECT VERSION()")[0][0]


def collations(server: SqlServer) -> list[tuple[str, str, int]]:
    if is_mariadb(server):
        table, name = "COLLATION_CHARACTER_SET_APPLICABILITY", "full_collation_name"
    else:
        table, name = "COLLATIONS", "collation_name"
    found = server.query(f"SELECT {name}, character_set_name, id FROM information_schema.{table}")
    return [(str(n), str(charset), int(number)) for n, charset, number in found]


def test_every_collation_of_a_server_is_known_by_its_id(server: SqlServer) -> None:
    found = collations(server)
    assert len(found) > 280
    of_mariadb = is_mariadb(server)
    for name, charset, number in found:
        assert collation_name(number, is_mariadb=of_mariadb) == name
        assert charset_of_collation(name) == charset


def test_every_charset_is_known_with_its_width_and_what_it_means_alone(server: SqlServer) -> None:
    found = server.query(
        "SELECT character_set_name, maxlen, default_collate_name"
        " FROM information_schema.CHARACTER_SETS"
    )
    assert len(found) >= 40
    for charset, width, collation in found:
        assert char_bytes_max(charset) == width
        chosen = charset == "utf8mb4" or "uca1400" in collation
        assert chosen or built_in(charset) == collation


def test_whether_a_collation_pads_is_known_from_its_name(server: SqlServer) -> None:
    """Asked of the server by comparing, since MariaDB has no column for it."""
    asked = [
        (name, f"CONVERT('a ' USING {charset}) = CONVERT('a' USING {charset}) COLLATE {name}")
        for name, charset, _ in collations(server)
        if charset != "binary"
    ]
    for start in range(0, len(asked), 100):
        some = asked[start : start + 100]
        (row,) = server.query("SELECT " + ", ".join(sql for _, sql in some))
        for (name, _), equal in zip(some, row, strict=True):
            assert bool(equal) == pads(name), name


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("mysql_server", "mariadb_server"),
        ("mysql_server", "mariadb_new_server"),
        ("mariadb_server", "mysql_server"),
        ("mariadb_new_server", "mysql_server"),
        ("mariadb_new_server", "mariadb_server"),
    ],
)
def test_whatever_one_server_has_the_other_has_too_or_something_near(
    request: pytest.FixtureRequest, here: str, there: str
) -> None:
    """A substitute never pads where what it replaces does not and still counts as fine."""
    ours, theirs = (
        {name for name, _, _ in collations(request.getfixturevalue(each))} for each in (here, there)
    )
    for name in ours - theirs:
        if theirs & set(aliases(name)):
            continue
        usable = [each for each in substitutes(name) if each.name in theirs]
        assert usable, name
        assert not any(each.is_fine and pads(each.name) and not pads(name) for each in usable)
        # Where accents and case count, no language could make two letters one.
        assert any(each.is_fine for each in usable) or not name.endswith("_0900_as_cs"), name


ALPHABET = (
    "aAbBsSzZeEiIoOuUnNtTyYxXkK01 .,-_~'`",
    "ßẞéÉèëäÄåÅöÖøØñÑçÇıİÿœŒæÆþđłŁµªº½²",
    "ａＡｆﬁﬀǅΣσςάЙйЁёאあアガ가文",
    "\u0301\u0308\u200b\u00ad\u2000\u212a\u212b\u00a0\t\n\x01\x7f\u1e9e\u2126\U0001f600\U00010400",
)  # fmt: skip
SOME = (
    "utf8mb4_bin utf8mb4_0900_ai_ci utf8mb4_0900_as_ci utf8mb4_0900_as_cs utf8mb4_0900_bin"
    " utf8mb4_general_ci utf8mb4_unicode_ci utf8mb4_unicode_520_ci utf8mb4_unicode_520_nopad_ci"
    " utf8mb4_uca1400_ai_ci utf8mb4_uca1400_nopad_as_cs utf8mb4_sv_0900_ai_ci utf8mb3_general_ci"
    " latin1_swedish_ci latin1_german1_ci latin1_german2_ci latin1_general_cs ascii_general_ci"
)


def texts(charset: str) -> list[str]:
    """Return short texts of letters that collations treat in every way, those of a charset."""
    chance = random.Random(charset)
    made = {"", " ", "ss", "SS", "ae", "oe", "fi", "A\u030a"}
    made |= {letter for letters in ALPHABET for letter in letters}
    while len(made) < 420:
        letters = chance.choice((ALPHABET[0], ALPHABET[0], "".join(ALPHABET)))
        made.add(
            "".join(chance.choices(letters, k=chance.randint(1, 3))) + chance.choice(("", "", " "))
        )
    codec = {"latin1": "cp1252", "ascii": "ascii"}.get(charset, "utf-8")
    three = (text for text in made if charset != "utf8mb3" or max(text, default="a") <= "\uffff")
    return sorted(text for text in three if text.encode(codec, "ignore").decode(codec) == text)


def equal_pairs(server: SqlServer, charset: str, names: list[str]) -> dict[str, list[list[str]]]:
    """Return, for each collation, the texts that the server calls equal."""
    found: dict[str, list[list[str]]] = {}
    every = texts(charset)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS folds")
        cursor.execute("USE folds")
        cursor.execute(
            f"CREATE TEMPORARY TABLE s (n INT PRIMARY KEY, v VARCHAR(9) CHARACTER SET {charset})"
        )
        cursor.executemany("INSERT INTO s VALUES (%s, %s)", list(enumerate(every)))
        cursor.execute("SET SESSION group_concat_max_len = 100000")
        for name in names:
            cursor.execute(
                "SELECT GROUP_CONCAT(n) FROM s GROUP BY v COLLATE " + name + " HAVING COUNT(*) > 1"
            )
            groups = [str(row[0]).split(",") for row in cursor.fetchall()]
            found[name] = [[every[int(n)] for n in group] for group in groups]
    return found


def check_folds(server: SqlServer, names: set[str]) -> None:
    for charset in ("utf8mb4", "utf8mb3", "latin1", "ascii"):
        own = sorted(name for name in names if charset_of_collation(name) == charset)
        for name, groups in equal_pairs(server, charset, own).items():
            tp = MysqlType.VARCHAR
            fold = fold_of(
                ColumnInfo(id=1, name="c", offset=0, tp=tp, charset=charset, collate=name)
            )
            for group in groups:
                folded = {made for text in group if (made := fold(text)) is not None}
                assert len(folded) <= 1, f"{name} takes {group!r} for one, and they fold apart"


@pytest.mark.thorough
def test_texts_that_a_server_calls_equal_never_count_as_two_keys(server: SqlServer) -> None:
    check_folds(server, set(SOME.split()) & {name for name, _, _ in collations(server)})


@pytest.mark.slow
def test_texts_that_any_collation_calls_equal_never_count_as_two_keys(server: SqlServer) -> None:
    check_folds(server, {name for name, _, _ in collations(server)})

"""What is known of charsets and collations is what three servers say of theirs."""

from __future__ import annotations

import pytest

from deploy.local.sql_server import SqlServer
from penstock.ddl.charsets import built_in, char_bytes_max
from penstock.ddl.collations import charset_of_collation, collation_name, pads
from penstock.ddl.substitutes import aliases, substitutes


@pytest.fixture(params=["mysql_server", "mariadb_new_server", "mariadb_server"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


def is_mariadb(server: SqlServer) -> bool:
    return "MariaDB" in server.query("SELECT VERSION()")[0][0]


def collations(server: SqlServer) -> list[tuple[str, str, int]]:
    """Return name, charset and id of all collations."""
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
    """A substitute never pads where the original does not and still counts as fine."""
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

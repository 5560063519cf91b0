"""Statements with what their session left to the server."""

import pytest

from penstock.ddl.charsets import collation_name, full_name, pads
from penstock.ddl.rewrite.explicit import SessionCollations, explicit, explicit_timestamps
from penstock.errors import NeedsOperator
from pumpclient.mysql.events.transactions import StatusVariables, decode_status
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.translate.statement_text import Dialect, session_collations
from tests.kit.mysql.encoding import encode_status
from tests.unit.penstock.ddl_session import DdlSession

SESSION = SessionCollations(
    server="latin1_german1_ci", by_charset={"utf8mb4": "utf8mb4_0900_ai_ci"}
)
WRITTEN_OUT = [
    ("CREATE DATABASE x", "CREATE DATABASE x COLLATE latin1_german1_ci"),
    ("CREATE DATABASE x CHARSET utf8mb4", "CREATE DATABASE x CHARSET utf8mb4 COLLATE {9}"),
    ("CREATE DATABASE x COLLATE latin2_bin", "CREATE DATABASE x COLLATE latin2_bin"),
    ("ALTER DATABASE x CHARSET utf8", "ALTER DATABASE x CHARSET utf8 COLLATE utf8mb3_general_ci"),
    ("CREATE TABLE t (a TEXT)", "CREATE TABLE t (a TEXT)"),
    (
        "CREATE TABLE t (a TEXT CHARSET utf8mb4 NOT NULL, b NCHAR(2)) CHARSET latin1",
        "CREATE TABLE t (a TEXT CHARSET utf8mb4 COLLATE {9} NOT NULL,"
        " b NCHAR(2) COLLATE utf8mb3_general_ci) CHARSET latin1 COLLATE latin1_swedish_ci",
    ),
    (
        "CREATE TABLE t (a TEXT CHARSET utf8mb4 BINARY, b VARCHAR(2) CHARACTER SET binary)",
        "CREATE TABLE t (a TEXT CHARSET utf8mb4 BINARY, b VARCHAR(2) CHARACTER SET binary)",
    ),
    (
        "ALTER TABLE t ADD a TEXT CHARSET latin1, CONVERT TO CHARACTER SET utf8mb4",
        "ALTER TABLE t ADD a TEXT CHARSET latin1 COLLATE latin1_swedish_ci,"
        " CONVERT TO CHARACTER SET utf8mb4 COLLATE {9}",
    ),
    ("ALTER TABLE t CHARSET utf8mb4", "ALTER TABLE t CHARSET utf8mb4 COLLATE {9}"),
]


@pytest.mark.parametrize(("sql", "wanted"), WRITTEN_OUT)
def test_what_the_session_left_to_the_server_is_written_out_once(sql: str, wanted: str) -> None:
    wanted = wanted.replace("{9}", "utf8mb4_0900_ai_ci")
    assert explicit(sql, SESSION) == wanted
    assert explicit(wanted, SESSION) == wanted


MARIADB = SessionCollations(server="latin1_german1_ci", is_reset=True)


@pytest.mark.parametrize(
    ("statement", "table", "column"),
    [
        ("CREATE TABLE t (a CHAR) CHARACTER SET DEFAULT", "utf8mb4_general_ci", ""),
        ("CREATE TABLE t (a CHAR) COLLATE DEFAULT", "utf8mb4_general_ci", ""),
        ("CREATE TABLE t (a CHAR) CHARSET latin1 COLLATE DEFAULT", "latin1_swedish_ci", ""),
        ("CREATE TABLE t (a CHAR) CHARSET DEFAULT COLLATE utf8mb4_bin", "utf8mb4_bin", ""),
        ("CREATE TABLE t (a CHAR COLLATE DEFAULT) COLLATE latin1_bin",
         "latin1_bin", "latin1_swedish_ci"),
        ("CREATE TABLE t (a CHAR CHARACTER SET ascii COLLATE DEFAULT) COLLATE latin1_bin",
         "latin1_bin", "ascii_general_ci"),
        ("ALTER TABLE old CHARACTER SET DEFAULT", "utf8mb4_general_ci", "latin1_bin"),
        ("ALTER TABLE old COLLATE DEFAULT", "latin1_swedish_ci", "latin1_bin"),
        ("ALTER TABLE old CONVERT TO CHARACTER SET DEFAULT", "utf8mb4_general_ci", ""),
        ("ALTER TABLE old CONVERT TO CHARACTER SET DEFAULT COLLATE DEFAULT",
         "utf8mb4_general_ci", ""),
        ("ALTER TABLE old MODIFY a CHAR COLLATE DEFAULT", "latin1_bin", "latin1_swedish_ci"),
    ],
)  # fmt: skip
def test_default_in_a_mariadb_is_the_collation_that_it_was_built_with(
    statement: str, table: str, column: str
) -> None:
    session = DdlSession("CREATE DATABASE e COLLATE utf8mb4_unicode_ci")
    session.run("CREATE TABLE e.old (a CHAR) COLLATE latin1_bin")
    sql = explicit(statement.replace("TABLE ", "TABLE e."), MARIADB)
    (job,) = session.run(sql)
    found = session.table(statement.split()[2], "e")
    assert (found.collate, found.columns[0].collate) == (table, column or table)
    # What runs downstream says it without DEFAULT.
    assert "DEFAULT" not in job.query.replace("DEFAULT CHARSET=", "")
    assert table in job.query or table == "latin1_bin"


def test_default_for_a_database_is_of_the_servers_charset_or_of_its_own() -> None:
    session = DdlSession(
        *(
            explicit(sql, MARIADB)
            for sql in (
                "CREATE DATABASE a CHARACTER SET DEFAULT",
                "CREATE DATABASE b COLLATE DEFAULT",
                "CREATE DATABASE c COLLATE utf8mb4_bin",
                "CREATE DATABASE e COLLATE utf8mb4_bin",
                "ALTER DATABASE c CHARACTER SET DEFAULT",
                "ALTER DATABASE e COLLATE DEFAULT",
            )
        )
    )
    found = [schema.collate for schema in session.catalog.schemas()[1:]]
    assert found == ["latin1_swedish_ci"] * 3 + ["utf8mb4_general_ci"]


def test_a_databases_collation_without_a_set_is_of_the_servers_set() -> None:
    session = SessionCollations(server="utf8mb3_general_ci", is_reset=True)
    short = "CHARACTER SET DEFAULT COLLATE uca1400_as_ci"
    made = DdlSession(
        explicit("CREATE DATABASE a COLLATE uca1400_as_ci", session),
        "CREATE DATABASE b COLLATE utf8mb4_bin",
        explicit(f"ALTER DATABASE b {short}", session),
    )
    found = [schema.collate for schema in made.catalog.schemas()[1:]]
    assert found == ["utf8mb3_uca1400_as_ci"] * 2
    for sql in (f"CREATE DATABASE a {short}", "CREATE DATABASE a COLLATE latin1_bin"):
        assert explicit(explicit(sql, session), session) == explicit(sql, session)


def test_default_is_refused_where_a_session_chose_collations_and_no_set_is_written() -> None:
    session = SessionCollations(by_charset={"utf8mb4": "utf8mb4_uca1400_ai_ci"}, is_reset=True)
    for sql in ("CREATE TABLE t (a CHAR COLLATE DEFAULT)", "ALTER TABLE t COLLATE DEFAULT"):
        with pytest.raises(NeedsOperator, match="its session chose"):
            explicit(sql, session)
    assert explicit("ALTER TABLE t CHARSET utf8mb4 COLLATE DEFAULT", session) == (
        "ALTER TABLE t CHARSET utf8mb4 COLLATE DEFAULT COLLATE utf8mb4_uca1400_ai_ci"
    )


def test_a_database_that_the_catalog_cannot_name_is_asked_for() -> None:
    made = explicit(
        "CREATE TABLE a.t (a TEXT) ENGINE=InnoDB", SESSION, lambda ref: f"of_{ref.schema}"
    )
    assert made == "CREATE TABLE a.t (a TEXT) ENGINE=InnoDB COLLATE=of_a"


def test_servers_differ_in_what_a_charset_alone_means() -> None:
    old, new = Dialect(Flavor.MYSQL, 50744), Dialect(Flavor.MYSQL, 90700)
    maria = Dialect(Flavor.MARIADB, 110809)
    variables = StatusVariables(charsets=(8, 8, 2304), default_collation_utf8mb4=45)
    assert session_collations(StatusVariables(), old).of("utf8mb4") == "utf8mb4_general_ci"
    assert session_collations(StatusVariables(), new).of("utf8mb4") == "utf8mb4_0900_ai_ci"
    assert session_collations(variables, new).of("utf8mb4") == "utf8mb4_general_ci"
    assert session_collations(variables, maria).server == "utf8mb4_uca1400_ai_ci"
    chosen = StatusVariables(mariadb_collations=((45, 46), (33, 2048)))
    assert session_collations(chosen, maria).of("utf8mb4") == "utf8mb4_bin"
    assert session_collations(chosen, maria).of("utf8") == "utf8mb3_uca1400_ai_ci"
    assert session_collations(chosen, maria).of("latin1") == "latin1_swedish_ci"


def test_collations_that_a_mariadb_session_chose_are_read_from_its_queries() -> None:
    raw = bytes.fromhex("8302080005002d002e00")
    assert decode_status(raw).mariadb_collations == ((8, 5), (45, 46))
    assert encode_status(decode_status(raw)) == raw
    assert decode_status(b"\x83\x00").mariadb_collations == ()


def test_collations_have_the_names_that_servers_give_them() -> None:
    names = {n: collation_name(n) for n in (8, 63, 255, 309, 1070, 1270, 2308, 3131)}
    assert names == {
        8: "latin1_swedish_ci", 63: "binary", 255: "utf8mb4_0900_ai_ci", 309: "utf8mb4_0900_bin",
        1070: "utf8mb4_nopad_bin", 1270: "utf8mb4_unicode_520_nopad_ci",
        2308: "utf8mb4_uca1400_nopad_ai_ci", 3131: "utf32_uca1400_spanish_as_cs",
    }  # fmt: skip
    assert collation_name(245) == "utf8mb4_croatian_ci"
    assert collation_name(245, is_mariadb=True) == "utf8mb4_croatian_mysql561_ci"
    for number in (0, 17, 400, 1041, 2048 + 8 * 21, 4000):
        with pytest.raises(NeedsOperator, match=str(number)):
            collation_name(number)
    assert full_name("uca1400_as_cs", "ucs2") == "ucs2_uca1400_as_cs"
    assert full_name("utf8mb4_bin", "utf8mb4") == "utf8mb4_bin"
    assert [n for n in names.values() if not pads(n)] == [
        "binary", "utf8mb4_0900_ai_ci", "utf8mb4_0900_bin", "utf8mb4_nopad_bin",
        "utf8mb4_unicode_520_nopad_ci", "utf8mb4_uca1400_nopad_ai_ci",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("CREATE TABLE t (a TIMESTAMP, b TIMESTAMP(3) DEFAULT NULL, c DATETIME)",
         "CREATE TABLE t (a TIMESTAMP NULL, b TIMESTAMP(3) NULL DEFAULT NULL, c DATETIME)"),
        ("ALTER TABLE t ADD a TIMESTAMP NOT NULL",
         "ALTER TABLE t ADD a TIMESTAMP DEFAULT '0000-00-00 00:00:00' NOT NULL"),
        ("ALTER TABLE t MODIFY a TIMESTAMP DEFAULT '2020-01-01 00:00:00', DROP b",
         "ALTER TABLE t MODIFY a TIMESTAMP NULL DEFAULT '2020-01-01 00:00:00', DROP b"),
        ("ALTER TABLE t CHANGE a b TIMESTAMP NOT NULL DEFAULT NOW()",
         "ALTER TABLE t CHANGE a b TIMESTAMP NOT NULL DEFAULT NOW()"),
        ("CREATE TABLE t (a TIMESTAMP NULL)", "CREATE TABLE t (a TIMESTAMP NULL)"),
        ("DROP TABLE t", "DROP TABLE t"),
    ],
)  # fmt: skip
def test_a_column_is_what_its_definition_says(sql: str, wanted: str) -> None:
    assert explicit_timestamps(sql) == wanted

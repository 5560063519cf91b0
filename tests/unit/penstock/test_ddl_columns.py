import pytest

from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnFlag, ColumnInfo, MysqlType
from tests.unit.penstock.ddl_session import DdlSession

F = ColumnFlag
T = MysqlType


def column(definition: str, options: str = "") -> ColumnInfo:
    return DdlSession(f"CREATE TABLE t (a {definition}) {options}").table().columns[0]


@pytest.mark.parametrize(
    ("definition", "tp", "flen", "decimal"),
    [
        ("TINYINT", T.TINY, 4, 0),
        ("TINYINT UNSIGNED", T.TINY, 3, 0),
        ("BOOL", T.TINY, 1, 0),
        ("INT1", T.TINY, 4, 0),
        ("SMALLINT", T.SHORT, 6, 0),
        ("MEDIUMINT", T.INT24, 9, 0),
        ("MIDDLEINT", T.INT24, 9, 0),
        ("INT", T.LONG, 11, 0),
        ("INTEGER UNSIGNED", T.LONG, 10, 0),
        ("INT(5)", T.LONG, 5, 0),
        ("BIGINT UNSIGNED", T.LONGLONG, 20, 0),
        ("INT8", T.LONGLONG, 20, 0),
        ("DECIMAL", T.NEWDECIMAL, 10, 0),
        ("FIXED(12)", T.NEWDECIMAL, 12, 0),
        ("NUMERIC(65,30)", T.NEWDECIMAL, 65, 30),
        ("FLOAT", T.FLOAT, 12, -1),
        ("FLOAT(24)", T.FLOAT, 12, -1),
        ("FLOAT(25)", T.DOUBLE, 22, -1),
        ("FLOAT(7,3)", T.FLOAT, 7, 3),
        ("REAL", T.DOUBLE, 22, -1),
        ("DOUBLE PRECISION", T.DOUBLE, 22, -1),
        ("BIT", T.BIT, 1, 0),
        ("BIT(64)", T.BIT, 64, 0),
        ("YEAR", T.YEAR, 4, 0),
        ("DATE", T.DATE, 10, 0),
        ("DATETIME", T.DATETIME, 19, 0),
        ("DATETIME(3)", T.DATETIME, 23, 3),
        ("TIMESTAMP(6)", T.TIMESTAMP, 26, 6),
        ("TIME", T.DURATION, 10, 0),
        ("TIME(2)", T.DURATION, 13, 2),
        ("CHAR", T.STRING, 1, 0),
        ("CHAR(20)", T.STRING, 20, 0),
        ("BINARY(4)", T.STRING, 4, 0),
        ("VARCHAR(20)", T.VARCHAR, 20, 0),
        ("CHARACTER VARYING(9)", T.VARCHAR, 9, 0),
        ("VARBINARY(7)", T.VARCHAR, 7, 0),
        ("TINYTEXT", T.TINY_BLOB, 255, 0),
        ("TEXT", T.BLOB, 65535, 0),
        ("TEXT(60)", T.TINY_BLOB, 255, 0),
        ("TEXT(100)", T.BLOB, 65535, 0),
        ("LONG", T.MEDIUM_BLOB, 16777215, 0),
        ("BLOB(70000)", T.MEDIUM_BLOB, 16777215, 0),
        ("LONGBLOB", T.LONG_BLOB, 4294967295, 0),
        ("ENUM('a','bcd')", T.ENUM, 3, 0),
        ("SET('a','bcd')", T.SET, 5, 0),
        ("JSON", T.JSON, 4294967295, 0),
        ("GEOMETRY", T.GEOMETRY, 4294967295, 0),
        ("POINT REF_SYSTEM_ID=4326 NOT NULL", T.GEOMETRY, 4294967295, 1),
        ("POLYGON NOT NULL /*!80003 SRID 4326 */", T.GEOMETRY, 4294967295, 3),
        ("GEOMCOLLECTION", T.GEOMETRY, 4294967295, 7),
    ],
)
def test_every_type_has_its_code_length_and_decimals(
    definition: str, tp: MysqlType, flen: int, decimal: int
) -> None:
    made = column(definition)
    assert (made.tp, made.flen, made.decimal) == (tp, flen, decimal)


@pytest.mark.parametrize(
    ("definition", "flag"),
    [
        ("INT", F(0)),
        ("INT NOT NULL", F.NOT_NULL),
        ("INT UNSIGNED", F.UNSIGNED),
        ("INT ZEROFILL", F.UNSIGNED | F.ZEROFILL),
        ("BIT(3)", F.UNSIGNED),
        ("YEAR", F.UNSIGNED | F.ZEROFILL),
        ("INT PRIMARY KEY", F.NOT_NULL | F.PRI_KEY),
        ("INT UNIQUE", F.UNIQUE_KEY),
        ("INT AUTO_INCREMENT KEY", F.NOT_NULL | F.PRI_KEY | F.AUTO_INCREMENT),
        ("INT AUTO_INCREMENT NULL UNIQUE", F.UNIQUE_KEY | F.AUTO_INCREMENT),
        ("INT NULL AUTO_INCREMENT UNIQUE", F.NOT_NULL | F.UNIQUE_KEY | F.AUTO_INCREMENT),
        ("INT AUTO_INCREMENT NULL KEY", F.NOT_NULL | F.PRI_KEY | F.AUTO_INCREMENT),
        ("DOUBLE AUTO_INCREMENT KEY", F.NOT_NULL | F.PRI_KEY | F.AUTO_INCREMENT),
        ("SERIAL", F.NOT_NULL | F.UNIQUE_KEY | F.AUTO_INCREMENT | F.UNSIGNED),
        ("TEXT", F.BLOB),
        ("BLOB", F.BLOB | F.BINARY),
        ("BINARY(3)", F.BINARY),
        ("ENUM('a')", F.ENUM),
        ("SET('a')", F.SET),
        ("DATETIME ON UPDATE NOW()", F.ON_UPDATE_NOW),
        ("TIMESTAMP DEFAULT NOW()", F.TIMESTAMP),
    ],
)
def test_every_attribute_has_its_flag(definition: str, flag: ColumnFlag) -> None:
    assert column(definition).flag == flag


@pytest.mark.parametrize(
    ("definition", "options", "charset", "collate"),
    [
        ("VARCHAR(3)", "", "utf8mb4", "utf8mb4_bin"),
        ("VARCHAR(3)", "CHARSET latin1", "latin1", "latin1_bin"),
        ("VARCHAR(3)", "COLLATE utf8_general_ci", "utf8", "utf8_general_ci"),
        ("VARCHAR(3) CHARACTER SET utf8", "", "utf8", "utf8_bin"),
        ("VARCHAR(3) NOT NULL COLLATE ascii_general_ci", "", "ascii", "ascii_general_ci"),
        ("VARCHAR(3) BINARY", "COLLATE utf8mb4_general_ci", "utf8mb4", "utf8mb4_bin"),
        ("CHAR(3) ASCII", "", "latin1", "latin1_bin"),
        ("NATIONAL CHAR(3)", "", "utf8", "utf8_bin"),
        ("CHAR(3) BYTE", "", "binary", "binary"),
        ("TEXT CHARACTER SET binary", "", "binary", "binary"),
        ("VARCHAR(3)", "CHARSET binary", "binary", "binary"),
        ("INT", "CHARSET latin1", "binary", "binary"),
        ("BLOB", "CHARSET latin1", "binary", "binary"),
        ("POINT", "CHARSET latin1", "binary", "binary"),
        ("JSON", "CHARSET latin1", "utf8mb4", "utf8mb4_bin"),
        ("ENUM('a') CHARSET latin1 COLLATE latin1_swedish_ci", "", "latin1", "latin1_swedish_ci"),
    ],
)
def test_character_sets_come_from_the_column_then_the_table(
    definition: str, options: str, charset: str, collate: str
) -> None:
    made = column(definition, options)
    assert (made.charset, made.collate) == (charset, collate)


@pytest.mark.parametrize(
    ("definition", "options", "names"),
    [
        ("ENUM(0x9353, x'9373') CHARSET sjis", "", ("鉄", "都")),
        ("ENUM(0xE4, '1')", "CHARSET latin1", ("ä", "1")),
        ("SET('a', b'01000010', 0xF020)", "CHARSET cp1251", ("a", "B", "р")),
        ("ENUM(0x41, 0x4142)", "CHARSET ucs2", ("A", "䅂")),
        ("ENUM(0xC3A4) CHARSET binary", "", ("ä",)),
    ],
)
def test_labels_in_hexadecimal_are_bytes_of_the_column_s_character_set(
    definition: str, options: str, names: tuple[str, ...]
) -> None:
    assert column(definition, options).elems == names


def test_a_statement_with_bytes_stays_as_written() -> None:
    written = "ENUM(0xE4,'1') CHARACTER SET latin1 COLLATE latin1_bin DEFAULT _koi8r 0x31"
    session = DdlSession(f"CREATE TABLE t (a {written})")
    assert written in session.history[-1].query


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ("ENUM(0xE4, '1')", "0xe4 is no text in character set utf8mb4"),
        ("CHAR DEFAULT 0xFF", "0xff is no text in character set utf8mb4"),
        ("CHAR CHARSET sjis DEFAULT 0x81", "0x81 is no text in character set sjis"),
        ("CHAR DEFAULT _utf8mb4 0xFF", "0xff is no text in character set utf8mb4"),
        ("CHAR DEFAULT _latin1'ä'", "bytes of 'ä', which"),
        ("CHAR DEFAULT _klingon 0x41", "'klingon' is unknown"),
    ],
)
def test_bytes_that_are_no_text_are_refused_with_a_hint(definition: str, problem: str) -> None:
    with pytest.raises(NeedsOperator, match=problem) as refused:
        column(definition)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("definition", "default"),
    [
        ("INT", None), ("INT DEFAULT NULL", None), ("INT DEFAULT '007'", "7"),
        ("INT DEFAULT -3", "-3"), ("INT DEFAULT 2.5", "3"), ("INT DEFAULT 0x1F", "31"),
        ("INT DEFAULT (7)", "7"), ("BOOL DEFAULT TRUE", "1"), ("DECIMAL(5,2) DEFAULT 1.5", "1.50"),
        ("DECIMAL(5,2) DEFAULT -0.001", "0.00"), ("DOUBLE DEFAULT 3", "3"),
        ("DOUBLE DEFAULT 1.5e3", "1500"), ("FLOAT DEFAULT 0.1", "0.1"),
        ("BIT(8) DEFAULT b'101'", "5"), ("BIT(8) DEFAULT 'A'", "65"), ("YEAR DEFAULT '70'", "1970"),
        ("YEAR DEFAULT 69", "2069"), ("YEAR DEFAULT 0", "0"), ("YEAR DEFAULT '0'", "2000"),
        ("VARCHAR(9) DEFAULT 'a' 'b'", "ab"), ("VARCHAR(9) DEFAULT 5", "5"),
        ("VARCHAR(9) DEFAULT _utf8mb4'x'", "x"), ("VARCHAR(9) DEFAULT x'4142'", "AB"),
        ("VARCHAR(9) CHARSET latin1 DEFAULT 0xE4", "ä"),
        ("VARCHAR(9) CHARSET latin1 DEFAULT x'C3A4'", "Ã¤"),
        ("VARCHAR(9) CHARSET ucs2 DEFAULT 0x4E2D41", "N\u2d41"),
        ("CHAR CHARSET cp1251 DEFAULT _koi8r 0xFF", "Ъ"), ("CHAR DEFAULT _latin1 b'11100100'", "ä"),
        ("CHAR(3) DEFAULT _latin1'abc'", "abc"), ("VARCHAR(3) DEFAULT _ucs2'ab'", "慢"),
        ("VARBINARY(3) DEFAULT _binary 0x4142", "AB"),
        ("ENUM(0xE4, 'b') CHARSET latin1 DEFAULT 0xE4", "ä"), ("ENUM('a','B') DEFAULT 'B '", "B"),
        ("ENUM('a','B') COLLATE utf8mb4_general_ci DEFAULT 'b'", "B"),
        ("SET('a','b','c') DEFAULT 'c,a'", "a,c"), ("SET('a') DEFAULT ''", ""),
        ("DATE DEFAULT '20-1-2'", "2020-01-02"), ("DATE DEFAULT 20200102", "2020-01-02"),
        ("DATE DEFAULT '0000-00-00'", "0000-00-00"),
        ("DATETIME DEFAULT '2020-01-02'", "2020-01-02 00:00:00"),
        ("DATETIME(2) DEFAULT '2020-01-02T03:04:05.5'", "2020-01-02 03:04:05.50"),
        ("DATETIME DEFAULT 20200102030405", "2020-01-02 03:04:05"),
        ("TIMESTAMP DEFAULT CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP"),
        ("TIMESTAMP(3) DEFAULT NOW(3)", "CURRENT_TIMESTAMP(3)"),
        ("TIME DEFAULT '-1:2:3'", "-01:02:03"), ("TIME(1) DEFAULT '838:59:59'", "838:59:59.0"),
        ("TIME DEFAULT 12345", "01:23:45"), ("TEXT DEFAULT ('x')", "x"),
    ],
)  # fmt: skip
def test_defaults_are_kept_in_one_form(definition: str, default: str | None) -> None:
    made = column(definition)
    assert (made.default, made.default_is_expr) == (default, False)


def test_an_expression_as_default_is_kept_as_sql() -> None:
    made = column("VARCHAR(50) DEFAULT (concat('a', uuid()))")
    assert (made.default, made.default_is_expr) == ("concat('a', uuid())", True)


def test_generated_columns_keep_their_expression() -> None:
    table = DdlSession("CREATE TABLE t (a INT, b INT AS (a + 1), c INT AS ((a)) STORED)").table()
    assert [(c.generated_expr, c.generated_stored) for c in table.columns[1:]] == [
        ("a + 1", False),
        ("(a)", True),
    ]


@pytest.mark.parametrize(
    "definition",
    [
        "INT DEFAULT 'x'", "INT DEFAULT ''", "TINYINT DEFAULT 128", "INT UNSIGNED DEFAULT -1",
        "INT NOT NULL DEFAULT NULL", "INT DEFAULT NaN", "DECIMAL(3,1) DEFAULT 100",
        "DECIMAL(5,2) DEFAULT 'Infinity'", "DECIMAL(66)", "DECIMAL(5,6)", "FLOAT(54)", "DOUBLE(5)",
        "BIT(65)", "BIT(3) DEFAULT 8", "CHAR(256)", "VARCHAR", "VARCHAR(16384)",
        "VARCHAR(2) DEFAULT 'abc'", "VARBINARY(4) DEFAULT x'FF'", "ENUM()", "ENUM('a') DEFAULT 'b'",
        "SET('a,b')", "DATETIME(7)", "DATETIME DEFAULT '2020-13-01'",
        "DATETIME DEFAULT '2021-02-29'", "DATETIME DEFAULT '2020-01-01 00:00:00.5'",
        "DATE UNSIGNED", "VARBINARY(65533)", "VARCHAR(21845) CHARACTER SET utf8",
        "TEXT AUTO_INCREMENT KEY", "INT AUTO_INCREMENT", "INT AUTO_INCREMENT DEFAULT 1 KEY",
        "INT ON UPDATE NOW()", "INT NULL PRIMARY KEY", "INT AS (1) DEFAULT 3",
        "INT AS (1) VIRTUAL PRIMARY KEY", "JSON DEFAULT '{}'", "JSON UNIQUE", "GEOMETRY UNSIGNED",
        "POINT CHARACTER SET utf8", "POINT DEFAULT ''", "INT SRID 4326", "POINT SRID x",
        "VECTOR(3)", "VARCHAR(3) CHARSET klingon", "VARCHAR(3) CHARSET utf8 COLLATE latin1_bin",
        "INT CHARACTER SET utf8", "INT SPARKLING", "FOO", "",
    ],
)  # fmt: skip
def test_what_mysql_would_refuse_or_rows_cannot_hold_is_refused(definition: str) -> None:
    with pytest.raises(NeedsOperator):
        column(definition)

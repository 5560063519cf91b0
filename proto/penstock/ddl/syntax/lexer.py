"""Splits SQL text into tokens, by MySQL's rules, with every token's place in the text.

Text that MySQL would execute is kept and all other text is blanked, character for character, so
that a token's `start` and `end` are also places in `Source.text`:

    /* comment */  -- comment  # comment   blanked
    /*!50100 sql */                        only the markers are blanked: any server of today runs it
    /*T![feature] sql */                   blanked: TiDB's own placement and handle choices
    /*M! sql */                            refused: MySQL and MariaDB would disagree about it

Sql modes are the servers' defaults: "..." is a string, and a backslash escapes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from penstock.codes import Code
from penstock.errors import Malformed


class Kind(Enum):
    """The kinds of tokens."""

    WORD = auto()
    QUOTED = auto()
    STRING = auto()
    NUMBER = auto()
    HEX = auto()
    BITS = auto()
    SIGN = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `text` is its value: a name without quotes, a string without escapes."""

    kind: Kind
    text: str
    start: int
    end: int

    @property
    def upper(self) -> str:
        """The word in capitals, "" unless it is a bare word."""
        return self.text.upper() if self.kind is Kind.WORD else ""


@dataclass(frozen=True, slots=True)
class Source:
    """A text with its comments blanked, and its tokens, the last of which is END."""

    text: str
    tokens: tuple[Token, ...]

    def slice(self, start: int, end: int) -> str:
        return self.text[start:end]


_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_KEPT_ESCAPES = {"%", "_"}
_PATTERN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<tidb>/\*T!.*?\*/)
  | (?P<maria>/\*M!)
  | (?P<opens>/\*!\d*)
  | (?P<comment>/\*.*?\*/)
  | (?P<line>(?:--(?=[\s\x00-\x1f]|$)|\#)[^\n]*)
  | (?P<hex>0x[0-9A-Fa-f]+\b|[xX]'(?:[0-9A-Fa-f]{2})*')
  | (?P<bits>0b[01]+\b|[bB]'[01]*')
  | (?P<number>(?:\d+\.\d*|\.\d+|\d+)[eE][+-]?\d+(?![\w$])|\d+\.\d*|(?<![\w$`])\.\d+|\d+(?![\w$]))
  | (?P<word>[\w$]+)
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<string>'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*")
  | (?P<closes>\*/)
  | (?P<sign>[^`'"])
    """,
    re.VERBOSE | re.DOTALL,
)
_KINDS = {
    "word": Kind.WORD,
    "quoted": Kind.QUOTED,
    "string": Kind.STRING,
    "number": Kind.NUMBER,
    "hex": Kind.HEX,
    "bits": Kind.BITS,
    "sign": Kind.SIGN,
}


def read(sql: str) -> Source:
    """Return the tokens of `sql`; an unclosed quote or comment raises NeedsOperator."""
    tokens: list[Token] = []
    kept: list[str] = []
    at, depth = 0, 0
    while at < len(sql):
        match = _PATTERN.match(sql, at)
        group = (match.lastgroup if match else None) or "open"
        piece = match.group() if match else ""
        if group in ("open", "maria") or (piece == "/" and sql.startswith("/*", at)):
            raise _unreadable(sql, at, group)
        if group == "closes" and depth == 0:
            group = "sign"
            piece = "*"
        depth += {"opens": 1, "closes": -1}.get(group, 0)
        kind = _KINDS.get(group)
        if kind is None:
            kept.append(re.sub(r"[^\n]", " ", piece))
        else:
            kept.append(piece)
            tokens.append(Token(kind, _meaning(kind, piece), at, at + len(piece)))
        at += len(piece)
    if depth:
        raise _unreadable(sql, len(sql), "open")
    tokens.append(Token(Kind.END, "", at, at))
    return Source("".join(kept), tuple(tokens))


def _unreadable(sql: str, at: int, group: str) -> Malformed:
    near = sql[at : at + 30] or sql[-30:]
    if group == "maria":
        problem, hint = "a comment for MariaDB only", "write the clause without the comment marks"
    else:
        problem, hint = "a quote or comment that never ends", "close it"
    return Malformed(f"DDL holds {problem} near {near!r}", hint, Code.DDL_UNREADABLE)


def _meaning(kind: Kind, piece: str) -> str:
    if kind is Kind.QUOTED:
        return piece[1:-1].replace("``", "`")
    if kind is Kind.STRING:
        return _unescape(piece)
    if kind in (Kind.HEX, Kind.BITS):
        return piece[2:-1] if piece[1] == "'" else piece[2:]
    return piece


def _unescape(piece: str) -> str:
    quote = piece[0]
    return re.sub(
        rf"\\(.)|({quote}{quote})",
        lambda m: quote if m.group(2) else _escaped(m.group(1)),
        piece[1:-1],
        flags=re.DOTALL,
    )


def _escaped(char: str) -> str:
    if char in _KEPT_ESCAPES:
        return "\\" + char
    return _ESCAPES.get(char, char)


def quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def quote_path(*names: str) -> str:
    return ".".join(map(quote_name, names))


_RESERVED = """
    ADD ALL ALTER ANALYZE AND AS ASC BEFORE BETWEEN BIGINT BINARY BLOB BOTH BY CALL CASCADE CASE
    CHANGE CHAR CHARACTER CHECK COLLATE COLUMN CONDITION CONSTRAINT CONTINUE CONVERT CREATE CROSS
    CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER CURSOR DATABASE DATABASES DAY_HOUR
    DAY_MICROSECOND DAY_MINUTE DAY_SECOND DEC DECIMAL DECLARE DEFAULT DELAYED DELETE DESC DESCRIBE
    DETERMINISTIC DISTINCT DISTINCTROW DIV DOUBLE DROP DUAL EACH ELSE ELSEIF ENCLOSED ESCAPED
    EXISTS EXIT EXPLAIN FALSE FETCH FLOAT FLOAT4 FLOAT8 FOR FORCE FOREIGN FROM FULLTEXT GRANT
    GROUP HAVING HIGH_PRIORITY HOUR_MICROSECOND HOUR_MINUTE HOUR_SECOND IF IGNORE IN INDEX INFILE
    INNER INOUT INSENSITIVE INSERT INT INT1 INT2 INT3 INT4 INT8 INTEGER INTERVAL INTO IS ITERATE
    JOIN KEY KEYS KILL LEADING LEAVE LEFT LIKE LIMIT LINEAR LINES LOAD LOCALTIME LOCALTIMESTAMP
    LOCK LONG LONGBLOB LONGTEXT LOOP LOW_PRIORITY MATCH MAXVALUE MEDIUMBLOB MEDIUMINT MEDIUMTEXT
    MIDDLEINT MINUTE_MICROSECOND MINUTE_SECOND MOD MODIFIES NATURAL NOT NO_WRITE_TO_BINLOG NULL
    NUMERIC ON OPTIMIZE OPTION OPTIONALLY OR ORDER OUT OUTER OUTFILE PARTITION PRECISION PRIMARY
    PROCEDURE PURGE RANGE READ READS READ_WRITE REAL REFERENCES REGEXP RELEASE RENAME REPEAT
    REPLACE REQUIRE RESTRICT RETURN REVOKE RIGHT RLIKE SCHEMA SCHEMAS SECOND_MICROSECOND SELECT
    SENSITIVE SEPARATOR SET SHOW SMALLINT SPATIAL SPECIFIC SQL SQLEXCEPTION SQLSTATE SQLWARNING
    SQL_BIG_RESULT SQL_CALC_FOUND_ROWS SQL_SMALL_RESULT SSL STARTING STRAIGHT_JOIN TABLE
    TERMINATED THEN TINYBLOB TINYINT TINYTEXT TO TRAILING TRIGGER TRUE UNDO UNION UNIQUE UNLOCK
    UNSIGNED UPDATE USAGE USE USING UTC_DATE UTC_TIME UTC_TIMESTAMP VALUES VARBINARY VARCHAR
    VARCHARACTER VARYING WHEN WHERE WHILE WITH WRITE XOR YEAR_MONTH ZEROFILL
"""
RESERVED = frozenset(_RESERVED.split())
"""Words that MySQL reserves: they cannot be names unless quoted.

Words that only MySQL 8 reserves (RANK, ROWS, GROUPS, SYSTEM and so on) are omitted on purpose:
older servers and MariaDB accept them as names, and no statement here becomes ambiguous by it.
"""

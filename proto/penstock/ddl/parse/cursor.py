"""A cursor over a statement's tokens, and the tests that a parser makes there.

The cursor also collects `edits`, which are changes of the downstream text that do not depend on the
catalog, and `refs`, which are all names of tables and databases with their places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from penstock.codes import Code
from penstock.datum.jsonb import text_literal
from penstock.ddl.charsets import charset_named, literal_in
from penstock.ddl.syntax.lexer import RESERVED, Kind, Source, Token
from penstock.ddl.syntax.statements import Edit, Flavor, TableRef, Value, ValueKind
from penstock.errors import Malformed, NeedsOperator

T = TypeVar("T")
NAME_CHARS_MAX = 64
_SPACES = " \t\n\v\f\r"
COMMENT_MAX, TABLE_COMMENT_MAX = 1024, 2048
"""Characters; a server with a lax sql_mode cuts longer comments, any other refuses them."""
_RAW = {Kind.HEX: ValueKind.HEX, Kind.BITS: ValueKind.BITS}
_NOW = ("CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP")
_BARE_CALLS = (
    "CURRENT_USER", "CURRENT_ROLE", "CURRENT_DATE", "CURRENT_TIME", "UTC_DATE", "UTC_TIME",
    "UTC_TIMESTAMP",
)  # fmt: skip
_SEQUENCE_CALLS = ("NEXTVAL", "LASTVAL", "SETVAL")


class Cursor:
    """Walks over the tokens of one source, forwards only."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.at = 0
        self.edits: list[Edit] = []
        self.foreign: list[Edit] = []
        self.json: list[Edit] = []
        self.refs: list[TableRef] = []
        self.statement_start = 0
        self.period: tuple[str, ...] = ()
        """The columns of SYSTEM_TIME that the statement names, start and end, in lower case."""

    @property
    def token(self) -> Token:
        return self.source.tokens[self.at]

    @property
    def last_end(self) -> int:
        return self.source.tokens[self.at - 1].end if self.at else 0

    def peek(self, ahead: int = 1) -> Token:
        """Return a token further on, END beyond the last."""
        return self.source.tokens[min(self.at + ahead, len(self.source.tokens) - 1)]

    def next(self) -> Token:
        token = self.token
        if token.kind is not Kind.END:
            self.at += 1
        return token

    def fail(self, wanted: str = "") -> NoReturn:
        """Raise NeedsOperator naming the text under the cursor."""
        near = self.source.text[self.token.start : self.token.start + 40] or "its end"
        what = f", {wanted} is missing" if wanted else ""
        raise Malformed(
            f"cannot read the DDL near {near!r}{what}",
            "check the statement; the docstring of penstock.ddl says what can be followed",
            Code.DDL_UNREADABLE,
        )

    def refuse(self, what: str, hint: str) -> NoReturn:
        """Raise NeedsOperator for syntax that is understood but not supported."""
        raise NeedsOperator(f"Penstock does not support {what}", hint, Code.DDL_UNSUPPORTED)

    def is_word(self, *words: str) -> bool:
        if self.source.tokens[self.at].upper != words[0]:  # As nearly always.
            return False
        return all(self.peek(i).upper == word for i, word in enumerate(words))

    def take(self, *words: str) -> bool:
        if not self.is_word(*words):
            return False
        self.at += len(words)
        return True

    def take_any(self, *words: str) -> str:
        """Skip one of several words and return it, "" if none stands here."""
        if self.token.upper and self.token.upper in words:
            return self.next().upper
        return ""

    def expect(self, *words: str) -> None:
        if not self.take(*words):
            self.fail(" ".join(words))

    def is_sign(self, sign: str) -> bool:
        return self.token.kind is Kind.SIGN and self.token.text == sign

    def take_sign(self, sign: str) -> bool:
        if not self.is_sign(sign):
            return False
        self.at += 1
        return True

    def expect_sign(self, sign: str) -> None:
        if not self.take_sign(sign):
            self.fail(repr(sign))

    def at_end(self) -> bool:
        return self.token.kind is Kind.END or self.is_sign(";")

    def name(self, *, follows_dot: bool = False) -> str:
        """Read an identifier; reserved words must be quoted unless they follow a dot."""
        token = self.token
        is_reserved = token.upper in RESERVED and not follows_dot
        if token.kind is Kind.WORD and (is_reserved or token.text.isdigit()):
            self.fail("a name (reserved words need backticks)")
        if token.kind not in (Kind.WORD, Kind.QUOTED):
            self.fail("a name")
        is_padded = token.text[-1:] in _SPACES
        if not token.text or len(token.text) > NAME_CHARS_MAX or is_padded:
            raise NeedsOperator(
                f"{token.text!r} is no valid name",
                f"names have 1 to {NAME_CHARS_MAX} characters and no space at the end",
                Code.DDL_DEFINITION,
            )
        self.at += 1
        return token.text

    def is_name(self) -> bool:
        token = self.token
        return token.kind is Kind.QUOTED or (
            token.kind is Kind.WORD and token.upper not in RESERVED and not token.text.isdigit()
        )

    def table_ref(self) -> TableRef:
        """Read a table name, optionally with schema; a leading dot means the current schema."""
        start = self.token.start
        schema = None if self.is_sign(".") else self.name()
        if self.take_sign("."):
            ref = TableRef(schema, self.name(follows_dot=True), start, self.last_end)
        else:
            ref = TableRef(None, schema or "", start, self.last_end)
        self.refs.append(ref)
        return ref

    def schema_name(self) -> str:
        start = self.token.start
        name = self.name()
        self.refs.append(TableRef(name, "", start, self.last_end))
        return name

    def column_name(self) -> str:
        name = self.name()
        while self.take_sign("."):
            name = self.name(follows_dot=True)
        return name

    def integer(self) -> int:
        token = self.token
        if token.kind is not Kind.NUMBER or not token.text.isdigit():
            self.fail("a whole number")
        self.at += 1
        return int(token.text)

    def string(self) -> str:
        """Read a string literal; adjacent literals are joined."""
        if self.token.kind is not Kind.STRING:
            self.fail("a string")
        text = ""
        while self.token.kind is Kind.STRING:
            text += self.next().text
        return text

    def comment(self, longest: int = COMMENT_MAX) -> str:
        """Read a comment, truncating it as a server does."""
        start = self.token.start
        text = self.string()
        if len(text) > longest:
            text = text[:longest]
            self.edits.append(Edit(start, self.last_end, text_literal(text)))
        return text

    def listed(self, read: Callable[[], T]) -> tuple[T, ...]:
        found = [read()]
        while self.take_sign(","):
            found.append(read())
        return tuple(found)

    def in_parentheses(self, read: Callable[[], T]) -> tuple[T, ...]:
        self.expect_sign("(")
        found = self.listed(read)
        self.expect_sign(")")
        return found

    def names(self) -> tuple[str, ...]:
        return self.in_parentheses(self.column_name)

    def setting(self) -> Token:
        """Move past the value of an option, with or without `=`."""
        self.take_sign("=")
        return self.next()

    def parenthesised(self) -> str:
        """Move past a balanced pair of parentheses and return the text between them."""
        start = self.token.end
        self.expect_sign("(")
        depth = 1
        while depth:
            if self.sequence_call() or self._json_path():
                continue
            token = self.next()
            if token.kind is Kind.END:
                self.fail("')'")
            if token.kind is Kind.SIGN:
                depth += {"(": 1, ")": -1}.get(token.text, 0)
        return self.source.text[start : self.last_end - 1].strip()

    def sequence_call(self) -> bool:
        if self.is_word("NEXT", "VALUE", "FOR") or self.is_word("PREVIOUS", "VALUE", "FOR"):
            self.at += 3
            self.table_ref()
            return True
        if self.token.upper in _SEQUENCE_CALLS and self.peek().text == "(":
            self.at += 2
            self.table_ref()
            if self.take_sign(")"):
                return True
            while not self.take_sign(")"):
                if self.next().kind is Kind.END:
                    self.fail("')'")
            return True
        return False

    def _json_path(self) -> bool:
        """Rewrite MySQL's column->path and column->>path as functions, which MariaDB also has."""
        if not (self.is_sign("-") and self.peek().text == ">"):
            return False
        unquotes = self.peek(2).kind is Kind.SIGN and self.peek(2).text == ">"
        size = 3 if unquotes else 2
        first = self.at - 1
        if self.peek(size).kind is not Kind.STRING or first < 0:
            return False
        tokens = self.source.tokens
        while first >= 2 and tokens[first - 1].kind is Kind.SIGN and tokens[first - 1].text == ".":
            first -= 2
        if tokens[first].kind not in (Kind.WORD, Kind.QUOTED):
            return False
        head = "JSON_UNQUOTE(JSON_EXTRACT(" if unquotes else "JSON_EXTRACT("
        begin, dash, path = tokens[first], self.token, self.peek(size)
        self.edits.append(Edit(begin.start, begin.start, head))
        self.edits.append(Edit(dash.start, self.peek(size - 1).end, ", "))
        self.edits.append(Edit(path.end, path.end, "))" if unquotes else ")"))
        self.at += size + 1
        return True

    def drop_text(self, start: int) -> None:
        """Omit the text from `start` to the cursor downstream."""
        self.edits.append(Edit(start, self.last_end, ""))

    def drop_from_mariadb(self, start: int) -> None:
        """Omit the text from `start` to the cursor, which MariaDB cannot read.

        A TiDB's statement runs as its binlog has it, so it still has this text.
        """
        self.drop_text(start)
        self.foreign.append(Edit(start, self.last_end, "", Flavor.MARIADB))

    def lacks(self, flavor: Flavor, start: int, what: str, text: str = "") -> None:
        """Record that a server of that flavor cannot read the text from `start` to the cursor.

        `text` replaces it.
        """
        self.foreign.append(Edit(start, self.last_end, text, flavor, what))

    def kept_if(self, *words: str) -> bool:
        """Skip IF [NOT] EXISTS, keeping it where only a server can evaluate it."""
        start = self.token.start
        if not self.take(*words):
            return False
        self.lacks(Flavor.MYSQL, start, " ".join(words))
        return True

    def waits(self) -> None:
        """Skip MariaDB's WAIT n or NOWAIT: each server decides how long to wait."""
        start = self.token.start
        if not self.dropped("NOWAIT") and self.is_word("WAIT") and self.peek().kind is Kind.NUMBER:
            self.at += 2
            self.drop_text(start)

    def dropped(self, *words: str) -> bool:
        """Skip these words, if they are next, and omit them downstream."""
        start = self.token.start
        if is_taken := self.take(*words):
            self.drop_text(start)
        return is_taken

    def if_exists(self) -> bool:
        """Skip IF EXISTS and omit it downstream, where a missing object must fail loudly."""
        return self.dropped("IF", "EXISTS")

    def if_not_exists(self) -> bool:
        """Skip IF NOT EXISTS and omit it downstream, where a conflict must fail loudly."""
        return self.dropped("IF", "NOT", "EXISTS")

    def now(self) -> Value | None:
        if not self.take_any(*_NOW):
            return None
        fsp = 0
        if self.take_sign("("):
            fsp = 0 if self.is_sign(")") else self.integer()
            self.expect_sign(")")
        return Value(ValueKind.NOW, str(fsp))

    def value(self) -> Value:
        if self.is_sign("("):
            return self._parenthesised_value()
        start = self.token.start
        found = self.literal() or self.now()
        if found is None and self.sequence_call():
            return Value(ValueKind.EXPRESSION, self.source.text[start : self.last_end])
        found = found or self._call()
        if found is None:
            self.fail("a literal, CURRENT_TIMESTAMP or an expression in parentheses")
        return found

    def _parenthesised_value(self) -> Value:
        start = self.at
        while self.take_sign("("):
            pass
        depth = self.at - start
        inner = self.literal()
        if inner is not None and all(self.take_sign(")") for _ in range(depth)):
            return inner
        self.at = start
        return Value(ValueKind.EXPRESSION, self.parenthesised())

    def _call(self) -> Value | None:
        start = self.token.start
        if self.token.kind is Kind.WORD and self.peek().text == "(":
            self.next()
            self.parenthesised()
        elif self.take_any(*_BARE_CALLS):
            if self.is_sign("("):
                self.parenthesised()
        elif self.take("SYSDATE"):  # In this form a MariaDB accepts it in ORACLE mode.
            self.edits.append(Edit(self.last_end, self.last_end, "()"))
            value = self.bare(start)
            return Value(value.kind, value.text + "()")
        elif self.is_word("CASE"):
            self._case()
        elif self.is_name():
            self.column_name()
        else:
            return None
        return self.bare(start)

    def _case(self) -> None:
        depth = 0
        while True:
            depth += self.is_word("CASE") - self.is_word("END")
            if self.next().kind is Kind.END:
                self.fail("END")
            if not depth:
                return

    def bare(self, start: int) -> Value:
        self.edits.append(Edit(start, start, "("))
        self.edits.append(Edit(self.last_end, self.last_end, ")"))
        return Value(ValueKind.EXPRESSION, self.source.text[start : self.last_end])

    def literal(self) -> Value | None:
        if self.take("NULL"):
            return Value(ValueKind.NULL)
        if word := self.take_any("TRUE", "FALSE"):
            return Value(ValueKind.NUMBER, str(int(word == "TRUE")))
        minus, begun = "", self.at
        while self.is_sign("-") or self.is_sign("+"):
            minus = minus if self.next().text == "+" else "-"[len(minus) :]
        token = self.token
        if begun < self.at and token.kind is not Kind.NUMBER:
            self.at = begun
            return None
        if token.kind is Kind.NUMBER:
            self.at += 1
            return Value(ValueKind.NUMBER, minus + token.text)
        if token.kind is Kind.WORD and self.peek().kind in (Kind.STRING, *_RAW):
            return self._introduced(token)
        if token.kind is Kind.STRING:
            return self.text()
        return self.raw()

    def text(self) -> Value:
        return Value(ValueKind.TEXT, self.string())

    def raw(self) -> Value | None:
        kind = _RAW.get(self.token.kind)
        return None if kind is None else Value(kind, self.next().text)

    def _introduced(self, token: Token) -> Value | None:
        """Read `_utf8'x'`, `N'x'` or `DATE'2020-01-01'`: only the string counts.

        `_koi8r 0xFF` is the text that these bytes are in that character set.
        """
        known = ("_UTF8", "_UTF8MB4", "_UTF8MB3", "_ASCII", "N", "DATE", "TIME", "TIMESTAMP")
        is_string = self.peek().kind is Kind.STRING
        if is_string and token.upper in known:
            self.at += 1
            return Value(ValueKind.TEXT, self.string(), has_charset=True)
        if not token.text.startswith("_"):
            return None
        charset = charset_named(token.text[1:].lower())
        self.at += 1
        # The server takes a string's bytes unchanged; here they are known only for ASCII.
        value = self.raw() or Value(ValueKind.HEX, _ascii_digits(self))
        if charset.is_binary:
            return value
        return Value(ValueKind.TEXT, literal_in(charset, value), has_charset=True)


def _ascii_digits(cur: Cursor) -> str:
    start = cur.token.start
    text = cur.string()
    if not text.isascii():
        written = cur.source.text[start : cur.last_end]
        raise NeedsOperator(
            f"the bytes of {written}, which its character set gives a meaning, are not known",
            "write it without the character set, or in hexadecimal",
            Code.CHARSET,
        )
    return text.encode().hex()

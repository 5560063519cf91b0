"""Parses SQL expressions into a syntax tree, with MySQL's precedence.

    expr        NOT expr | expr OR expr | expr XOR expr | expr AND expr | test [IS [NOT] TRUE | …]
    test        test IS [NOT] NULL | test {= <=> <> != < <= > >=} predicate | predicate
    predicate   sum [NOT] {IN (…) | BETWEEN sum AND predicate | LIKE atom [ESCAPE '…'] | REGEXP sum}
    sum         + - * / DIV % MOD, unary - and !
    atom        literal, column, function (…), CASE, CAST (… AS …), BINARY atom, ( expr )

`||` is OR and "…" a string: the servers' default sql mode. All other syntax (subqueries,
INTERVAL, bit operators, variables) raises NeedsOperator: nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import NoReturn, TypeAlias

from penstock.codes import Code
from penstock.ddl.syntax.lexer import Kind, Token, read
from penstock.errors import NeedsOperator


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; `kind` is DATE, TIME or TIMESTAMP for a text that such a word precedes."""

    value: int | float | Decimal | str | bytes | None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the row, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or a function, by its name in capitals."""

    name: str
    args: tuple[Node, ...]


Node: TypeAlias = Literal | Column | Call

_COMPARISONS = ("<=>", "<=", ">=", "<>", "!=", "=", "<", ">")
_LEVELS = (("OR", "||"), ("XOR", ""), ("AND", "&&"))
"""The loosest operators, the loosest first, each as a word and as a sign."""
_SPECIAL_CALLS = {"CAST", "CASE", "BINARY"}
_SYNONYMS = {
    "SUBSTR": "SUBSTRING", "MID": "SUBSTRING", "LCASE": "LOWER", "UCASE": "UPPER",
    "CHARACTER_LENGTH": "CHAR_LENGTH", "CEILING": "CEIL", "DAYOFMONTH": "DAY",
    "OCTET_LENGTH": "LENGTH",
}  # fmt: skip
_CASTS = {"SIGNED", "UNSIGNED", "CHAR", "DATE", "DATETIME", "BINARY"}
_RESERVED = {
    "SELECT", "INTERVAL", "EXISTS", "MATCH", "COLLATE", "FROM", "AND", "OR", "XOR", "IN", "LIKE",
    "BETWEEN", "REGEXP", "RLIKE", "IS", "DIV", "THEN", "ELSE", "END", "WHEN", "ROW", "CONVERT",
}  # fmt: skip


def parse_expression(text: str) -> Node:
    """Return the tree of an expression; raise `NeedsOperator` if any part cannot be parsed."""
    parser = _ExpressionParser(text)
    node = parser.expr()
    if parser.token.kind is not Kind.END:
        parser.fail("the end")
    return node


class _ExpressionParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = read(text).tokens
        self.at = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def fail(self, wanted: str) -> NoReturn:
        rest = self.text[self.token.start :][:30] or "its end"
        raise NeedsOperator(
            f"cannot read the expression {self.text!r} at {rest!r}: {wanted} is wanted",
            "drainer/guide/filters_and_routes.md says what an expression may hold",
            Code.FILTER_RULE,
        )

    def word(self, *words: str) -> bool:
        upper = [t.upper for t in self.tokens[self.at : self.at + len(words)]]
        if upper != list(words):
            return False
        self.at += len(words)
        return True

    def sign(self, sign: str) -> bool:
        """Take this sign if it comes next, its characters adjacent."""
        tokens = self.tokens[self.at : self.at + len(sign)]
        if "".join(t.text for t in tokens if t.kind is Kind.SIGN) != sign:
            return False
        if tokens[-1].end - tokens[0].start != len(sign):
            return False
        self.at += len(sign)
        return True

    def need(self, sign: str) -> None:
        if not self.sign(sign):
            self.fail(repr(sign))

    # --- from the loosest to the tightest -----------------------------------------------------

    def expr(self, level: int = 0) -> Node:
        """Read an operand of the level above `_LEVELS[level]`, and what its operators join to it.

        They are left-associative.
        """
        if level == len(_LEVELS):
            return self._not()
        node = self.expr(level + 1)
        name, sign = _LEVELS[level]
        while self.word(name) or (sign and self.sign(sign)):
            node = Call(name, (node, self.expr(level + 1)))
        return node

    def _not(self) -> Node:
        if self.word("NOT"):
            return Call("NOT", (self._not(),))
        return self._test()

    def _test(self) -> Node:
        node = self._predicate()
        while True:
            if self.word("IS"):
                node = self._is(node)
                continue
            comparison = next((sign for sign in _COMPARISONS if self.sign(sign)), None)
            if comparison is None:
                return node
            name = {"!=": "<>"}.get(comparison, comparison)
            node = Call(name, (node, self._predicate()))

    def _is(self, node: Node) -> Node:
        negated = self.word("NOT")
        for words, name in (("NULL", "NULL"), ("UNKNOWN", "NULL"), ("TRUE", "TRUE"),
                            ("FALSE", "FALSE")):  # fmt: skip
            if self.word(words):
                found = Call(f"IS {name}", (node,))
                return Call("NOT", (found,)) if negated else found
        self.fail("NULL, TRUE, FALSE or UNKNOWN")

    def _predicate(self) -> Node:
        node = self._sum()
        negated = self.tokens[self.at].upper == "NOT" and self.word("NOT")
        if self.word("IN"):
            self.need("(")
            found = Call("IN", (node, *self._list()))
        elif self.word("BETWEEN"):
            low = self._sum()
            if not self.word("AND"):
                self.fail("AND")
            found = Call("BETWEEN", (node, low, self._predicate()))
        elif self.word("LIKE"):
            pattern = self._unary()
            escape: Node = self._unary() if self.word("ESCAPE") else Literal("\\")
            found = Call("LIKE", (node, pattern, escape))
        elif self.word("REGEXP") or self.word("RLIKE"):
            found = Call("REGEXP", (node, self._sum()))
        elif negated:
            self.fail("IN, BETWEEN, LIKE or REGEXP")
        else:
            return node
        return Call("NOT", (found,)) if negated else found

    def _sum(self) -> Node:
        node = self._product()
        while self.token.text in ("+", "-") and self.token.kind is Kind.SIGN:
            name = self.token.text
            self.at += 1
            node = Call(name, (node, self._product()))
        return node

    def _product(self) -> Node:
        node = self._unary()
        while True:
            name = next((sign for sign in "*/%" if self.sign(sign)), None)
            if name is None and self.word("DIV"):
                name = "DIV"
            elif name is None and self.word("MOD"):
                name = "%"
            if name is None:
                return node
            node = Call(name, (node, self._unary()))

    def _unary(self) -> Node:
        if self.sign("-"):
            return Call("NEGATIVE", (self._unary(),))
        if self.sign("+"):
            return self._unary()
        if self.token.kind is Kind.SIGN and self.token.text == "!":
            self.at += 1
            return Call("NOT", (self._unary(),))
        return self._atom()

    # --- the smallest pieces ------------------------------------------------------------------

    def _list(self) -> tuple[Node, ...]:
        items: list[Node] = []
        if self.sign(")"):
            return ()
        while True:
            items.append(self.expr())
            if self.sign(")"):
                return tuple(items)
            self.need(",")

    def _atom(self) -> Node:
        token = self.token
        if token.kind is Kind.SIGN and self.sign("("):
            node = self.expr()
            self.need(")")
            return node
        self.at += token.kind is not Kind.END
        if token.kind is Kind.NUMBER:
            return Literal(_number(token.text))
        if token.kind is Kind.STRING:
            return Literal(token.text)
        if token.kind is Kind.QUOTED:
            return Column(token.text)
        if token.kind is Kind.WORD:
            return self._named(token)
        self.at -= token.kind is not Kind.END
        self.fail("a value")

    def _named(self, token: Token) -> Node:
        constant = {"NULL": None, "TRUE": 1, "FALSE": 0}
        if token.upper in constant:
            return Literal(constant[token.upper])
        if token.upper in ("DATE", "TIME", "TIMESTAMP") and self.token.kind is Kind.STRING:
            text = self.token.text
            self.at += 1
            return Literal(text, token.upper)
        if token.upper in _SPECIAL_CALLS:
            if token.upper == "BINARY":
                return Call("CAST BINARY", (self._unary(),))
            return self._cast() if token.upper == "CAST" else self._case()
        if token.upper in _RESERVED:
            self.at -= 1
            self.fail("a value")
        if self.sign("("):
            return Call(_SYNONYMS.get(token.upper, token.upper), self._list())
        if self.token.kind is Kind.SIGN and self.token.text == ".":
            self.fail("a column without its table")
        return Column(token.text)

    def _cast(self) -> Node:
        self.need("(")
        node = self.expr()
        if not self.word("AS"):
            self.fail("AS")
        to = self.token.upper
        if to not in _CASTS:
            self.fail(f"one of {', '.join(sorted(_CASTS))}")
        self.at += 1
        if to in ("SIGNED", "UNSIGNED"):
            self.word("INTEGER")
        self.need(")")
        return Call(f"CAST {to}", (node,))

    def _case(self) -> Node:
        subject = None if self.token.upper == "WHEN" else self.expr()
        args: list[Node] = []
        while self.word("WHEN"):
            when = self.expr()
            args.append(when if subject is None else Call("=", (subject, when)))
            if not self.word("THEN"):
                self.fail("THEN")
            args.append(self.expr())
        if not args:
            self.fail("WHEN")
        args.append(self.expr() if self.word("ELSE") else Literal(None))
        if not self.word("END"):
            self.fail("END")
        return Call("CASE", tuple(args))


def _number(text: str) -> int | float | Decimal:
    if text.isdecimal():
        return int(text)
    return float(text) if "e" in text.lower() else Decimal(text)

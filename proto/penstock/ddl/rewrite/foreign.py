"""Rewrites a job's statement for a server of one flavor, and lists the features it lacks.

Pure.

    written                                    MySQL                     MariaDB
    UUID, INET4, INET6                         CHAR(n) in ascii
    the same in ADD COLUMN … NOT NULL          with the type's zero as default
    TEXT or BLOB DEFAULT 'x'                   DEFAULT ('x')
    CHECK (json_valid(j)) of the column j      none
    sequences, DEFAULT NEXTVAL(s)              none, none
    COMPRESSED, IF EXISTS of a constraint      none
    YEAR(2)                                    YEAR
    Aria, page compression, encryption         none
    indexes over expressions                   UNIQUE ones are plain     none
    CHECK … NOT ENFORCED, ALTER CHECK          as written                none
    ALTER COLUMN … SET VISIBLE                 as written                none
    VISIBLE and INVISIBLE of an index          as written                [NOT] IGNORED

A TiDB lacks the same features as MySQL, except sequences, which it has. It reads a statement as
written, with TiDB's own syntax in comments, unless something must be omitted.

No row depends on the omitted parts. The sink reports once the features that a downstream lacks.

Collations that a server lacks have substitutes, in a statement that names them:

    lacking                              substitutes, of which the first available is used
    utf8_…, utf8mb3_…                    the same under its other name: an alias, not a substitute
    MySQL's UCA 9 (…_0900_…), no padding MariaDB's UCA 14 without padding, of the same language
    MariaDB's UCA 14 (…_uca1400_…)       MySQL's UCA 9, or UCA 5.2 where spaces at the end count not
    MariaDB's …_nopad_…                  the same with padding; utf8mb4's binary one has a twin
    gb18030_…                            utf8mb4, which has all its characters

A substitute is *fine* when it never treats two texts as equal that the original distinguishes: then
keys stay unique. Otherwise (if it pads and the original does not, for example) two rows could
become one, so a column in a PRIMARY KEY or UNIQUE index must not have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax import statements as ast
from penstock.ddl.syntax.lexer import Kind, Token, quote_name, quote_path, read


@dataclass(frozen=True, slots=True)
class Spelled:
    """The statement for a server, "" for nothing, and the features that the server lacks."""

    sql: str
    lacking: tuple[str, ...]


def spelled_for(
    flavor: ast.Flavor,
    sql: str,
    expression_indexes: Iterable[str] = (),
    sequences: Iterable[tuple[str, str]] = (),
) -> Spelled:
    """Return one statement for a flavor; `expression_indexes` are its table's, as far as known.

    `sequences` are those that a RENAME TABLE renames, each with its schema.

    Raises NeedsOperator for a text that is not a statement of ours.
    """
    source, statements = parse(sql)
    if flavor is ast.Flavor.TIDB and not any(_own(each, flavor) for each in statements):
        return Spelled(sql, ())
    gone = {name.lower() for name in expression_indexes} if flavor is ast.Flavor.MARIADB else set()
    renamed = set(sequences)
    texts: list[str] = []
    lacking: dict[str, None] = {}
    for statement in statements:
        is_sequence = isinstance(statement, (ast.CreateSequence, ast.AlterSequence)) or (
            isinstance(statement, ast.DropTables) and statement.kind == "SEQUENCE"
        )
        if flavor is ast.Flavor.MYSQL and is_sequence:
            lacking["sequences"] = None
            continue
        if flavor is ast.Flavor.MYSQL and isinstance(statement, ast.RenameTables) and renamed:
            lacking["sequences"] = None
            texts += _without(statement, renamed)
            continue
        own = _own(statement, flavor)
        lacking |= dict.fromkeys(each.what for each in own if each.what)
        text = _spelled(statement, source.text, own, gone)
        texts += [text] if text else []
    return Spelled("; ".join(texts), tuple(lacking))


def _own(statement: ast.Statement, flavor: ast.Flavor) -> list[ast.Edit]:
    if flavor is ast.Flavor.TIDB:
        return [e for e in _own(statement, ast.Flavor.MYSQL) if e.what != ast.SEQUENCE_DEFAULTS]
    own = [each for each in statement.foreign if each.flavor is flavor]
    # An index that is left out contains the edit of its own visibility.
    return [e for e in own if not any(_contains(other, e) for other in own)]


def _contains(outer: ast.Edit, inner: ast.Edit) -> bool:
    return outer != inner and outer.start <= inner.start and inner.end <= outer.end


def _without(statement: ast.RenameTables, sequences: set[tuple[str, str]]) -> list[str]:
    kept = []
    for old, new in statement.pairs:
        found = {s for s in sequences if s[1] == old.name and old.schema in (None, s[0])}
        if found:
            schema = new.schema or next(iter(found))[0]
            sequences = (sequences - found) | {(schema, new.name)}
        else:
            kept.append(f"{_quoted(old)} TO {_quoted(new)}")
    return [f"RENAME TABLE {', '.join(kept)}"] if kept else []


def _quoted(ref: ast.TableRef) -> str:
    return quote_name(ref.name) if ref.schema is None else quote_path(ref.schema, ref.name)


def _spelled(
    statement: ast.Statement, text: str, edits: Collection[ast.Edit], gone: Collection[str]
) -> str:
    if isinstance(statement, ast.IndexStatement) and _is_gone(statement.operation, gone):
        return ""
    if not isinstance(statement, ast.AlterTable) or not statement.parts:
        return ast.edited(text, statement.start, statement.end, edits)
    pieces = list(_pieces(statement.parts, text, edits, gone))
    if not pieces:
        return ""
    head = ast.edited(text, statement.start, statement.parts[0].start, edits)
    joined = pieces[0]
    for piece in pieces[1:]:
        follows = piece.upper().startswith(("PARTITION BY", "REMOVE PARTITIONING"))
        joined += (" " if follows else ", ") + piece
    return f"{head} {joined}"


def _pieces(
    parts: Iterable[ast.Part], text: str, edits: Collection[ast.Edit], gone: Collection[str]
) -> Iterator[str]:
    for part in parts:
        piece = ast.edited(text, part.start, part.end, edits)
        if piece and not _is_gone(part.operation, gone):
            yield piece


def _is_gone(operation: object, gone: Collection[str]) -> bool:
    if isinstance(operation, ast.DropKey | ast.AlterKey):
        return operation.name.lower() in gone
    return isinstance(operation, ast.RenameKey) and operation.old.lower() in gone


_UCA9 = re.compile(r"utf8mb4_(?:([a-z_]+)_)?0900_(a[is]_c[is])(?:_ks)?")
_UCA14 = re.compile(r"(?:([a-z0-9]+)_)?uca1400_(?:([a-z0-9]+)_)?(nopad_)?(a[is]_c[is])")
_LANGUAGES = {
    "de_pb": "german2", "is": "icelandic", "lv": "latvian", "ro": "romanian", "sl": "slovenian",
    "pl": "polish", "et": "estonian", "es": "spanish", "sv": "swedish", "tr": "turkish",
    "cs": "czech", "da": "danish", "lt": "lithuanian", "sk": "slovak", "es_trad": "spanish2",
    "la": "roman", "eo": "esperanto", "hu": "hungarian", "hr": "croatian", "vi": "vietnamese",
}  # fmt: skip
"""UCA 9's name of a language and UCA 14's."""
_CODES = {language: code for code, language in _LANGUAGES.items()}
_SIMILAR = {"nb": "danish", "nn": "danish", "gl": "spanish", "bs": "croatian",
            "sr_latn": "croatian"}  # fmt: skip
_SINGLE = {
    "utf8mb4_0900_bin": (("utf8mb4_nopad_bin", True), ("utf8mb4_bin", False)),
    "utf8mb4_nopad_bin": (("utf8mb4_0900_bin", True), ("utf8mb4_bin", False)),
    "utf8mb4_unicode_nopad_ci": (("utf8mb4_0900_ai_ci", False), ("utf8mb4_unicode_ci", False)),
    "utf8mb4_unicode_520_nopad_ci": (
        ("utf8mb4_0900_ai_ci", False), ("utf8mb4_unicode_520_ci", False),
    ),
    "utf8mb4_general1400_as_ci": (("utf8mb4_0900_as_ci", False), ("utf8mb4_general_ci", False)),
    "utf8mb3_general1400_as_ci": (("utf8mb3_general_ci", False),),
    "utf8mb3_tolower_ci": (("utf8mb3_general_ci", False),),
    "gb18030_bin": (("utf8mb4_bin", True),),
    "gb18030_unicode_520_ci": (("utf8mb4_unicode_520_ci", True),),
    "gb18030_chinese_ci": (("utf8mb4_unicode_520_ci", False),),
}  # fmt: skip
SUBSTITUTE_CHARSETS = {"gb18030": "utf8mb4"}
"""Character sets that a server may lack, and sets with all their characters."""


@dataclass(frozen=True, slots=True)
class Substitute:
    """The substitute of a collation; for `is_fine` see the module."""

    name: str
    is_fine: bool


def aliases(name: str) -> tuple[str, ...]:
    found = []
    if name.startswith("utf8_"):
        found.append(name.replace("utf8_", "utf8mb3_", 1))
    if name.startswith("utf8mb3_"):
        found.append(name.replace("utf8mb3_", "utf8_", 1))
    if "_croatian_mysql561_" in name:
        found.append(name.replace("_croatian_mysql561_", "_croatian_"))
    return tuple(found)


def substitutes(name: str) -> list[Substitute]:
    """Return the possible replacements of a collation, nearest first; empty for most."""
    return [Substitute(each, fine) for each, fine in _substitutes(name)]


def _substitutes(name: str) -> Iterator[tuple[str, bool]]:
    if name in _SINGLE:
        yield from _SINGLE[name]
    elif (found := _UCA9.fullmatch(name)) is not None:
        yield from _for_uca9(found[1] or "", found[2])
    elif (found := _UCA14.fullmatch(name)) is not None:
        yield from _for_uca14(found[1] or "utf8mb4", found[2] or "", bool(found[3]), found[4])
    elif "_nopad_" in name:
        yield name.replace("_nopad_", "_"), False
    elif name.endswith(("_myanmar_ci", "_thai_520_w2")):
        yield f"{name.partition('_')[0]}_unicode_520_ci", False


def _for_uca9(code: str, strength: str) -> Iterator[tuple[str, bool]]:
    language = _LANGUAGES.get(code) or _SIMILAR.get(code)
    if language:
        yield f"utf8mb4_uca1400_{language}_nopad_{strength}", code in _LANGUAGES
    # Without its language, some distinct letters are equal, unless accents count.
    yield f"utf8mb4_uca1400_nopad_{strength}", not code or strength.startswith("as")
    yield "utf8mb4_unicode_520_nopad_ci", not code and strength == "ai_ci"
    yield "utf8mb4_unicode_520_ci", False


def _for_uca14(
    charset: str, language: str, is_nopad: bool, strength: str
) -> Iterator[tuple[str, bool]]:
    if not language and strength == "ai_ci" and not is_nopad:
        yield f"{charset}_unicode_520_ci", True
    if charset == "utf8mb4":
        # Spaces at the end count in UCA 9, so it distinguishes more texts than a padding collation.
        # It does not have all strengths in all languages: accents and case together are the finest.
        code = _CODES.get(language, "")
        own = f"{code}_" if code else ""
        for each in dict.fromkeys((strength, "as_cs")):
            yield f"utf8mb4_{own}0900_{each}", own != "" or not language or each == "as_cs"
    yield f"{charset}_unicode_520_ci", False


_NAMES = (Kind.WORD, Kind.QUOTED, Kind.STRING)


def recollated(sql: str, collation: Callable[[str], str], charset: Callable[[str], str]) -> str:
    """Return a statement with the names after COLLATE and CHARACTER SET replaced.

    Both functions are given names in lower case. Expressions and views are included.
    """
    source = read(sql)
    edits = []
    for token, is_collation in _named(source.tokens):
        name = token.text.lower()
        new = (collation if is_collation else charset)(name)
        if new != name:
            edits.append(ast.Edit(token.start, token.end, new))
    return ast.edited(source.text, 0, len(source.text), edits) if edits else sql


def _named(tokens: tuple[Token, ...]) -> Iterator[tuple[Token, bool]]:
    for at, token in enumerate(tokens):
        word, after = token.upper, at + 1
        if word in ("CHARACTER", "CHAR") and tokens[after].upper == "SET":
            after += 1
        elif word not in ("COLLATE", "CHARSET", "USING"):
            continue
        if after < len(tokens) and tokens[after].text == "=":
            after += 1
        if after < len(tokens) and tokens[after].kind in _NAMES:
            yield tokens[after], word == "COLLATE"

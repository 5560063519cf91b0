"""MySQL's character sets: bytes per character, and the collation that is taken when none is named.

Servers disagree about that collation (utf8mb4 alone has three, and sessions may choose). Who knows
the session of a statement writes its choice into the text (`penstock.ddl.rewrite.explicit`); where
there was no server, Penstock decides, as TiDB does: the binary one for the common sets. `plan_ddl`
writes that into the statements, so that every downstream decides alike.
"""

from __future__ import annotations

from penstock.ddl.charsets.collations import charset_of_collation, full_name
from penstock.ddl.syntax.elements import Charset
from penstock.errors import NeedsOperator

_SETS: dict[str, tuple[int, str]] = {
    "utf8mb4": (4, "utf8mb4_general_ci"),
    "utf8": (3, "utf8_general_ci"),
    "utf8mb3": (3, "utf8mb3_general_ci"),
    "latin1": (1, "latin1_swedish_ci"),
    "ascii": (1, "ascii_general_ci"),
    "binary": (1, "binary"),
    "gbk": (2, "gbk_chinese_ci"),
    "gb18030": (4, "gb18030_chinese_ci"),
    "gb2312": (2, "gb2312_chinese_ci"),
    "big5": (2, "big5_chinese_ci"),
    "ucs2": (2, "ucs2_general_ci"),
    "utf16": (4, "utf16_general_ci"),
    "utf16le": (4, "utf16le_general_ci"),
    "utf32": (4, "utf32_general_ci"),
    "sjis": (2, "sjis_japanese_ci"),
    "cp932": (2, "cp932_japanese_ci"),
    "ujis": (3, "ujis_japanese_ci"),
    "eucjpms": (3, "eucjpms_japanese_ci"),
    "euckr": (2, "euckr_korean_ci"),
    "latin2": (1, "latin2_general_ci"),
    "latin5": (1, "latin5_turkish_ci"),
    "latin7": (1, "latin7_general_ci"),
    "greek": (1, "greek_general_ci"),
    "hebrew": (1, "hebrew_general_ci"),
    "koi8r": (1, "koi8r_general_ci"),
    "koi8u": (1, "koi8u_general_ci"),
    "tis620": (1, "tis620_thai_ci"),
    "cp850": (1, "cp850_general_ci"),
    "cp852": (1, "cp852_general_ci"),
    "cp866": (1, "cp866_general_ci"),
    "cp1250": (1, "cp1250_general_ci"),
    "cp1251": (1, "cp1251_general_ci"),
    "cp1256": (1, "cp1256_general_ci"),
    "cp1257": (1, "cp1257_general_ci"),
    "macroman": (1, "macroman_general_ci"),
    "macce": (1, "macce_general_ci"),
    "armscii8": (1, "armscii8_general_ci"),
    "geostd8": (1, "geostd8_general_ci"),
    "dec8": (1, "dec8_swedish_ci"),
    "hp8": (1, "hp8_english_ci"),
    "keybcs2": (1, "keybcs2_general_ci"),
    "swe7": (1, "swe7_swedish_ci"),
}
"""Each with its bytes for a character and the collation that servers were built with."""
_BINARY = frozenset({"utf8mb4", "utf8", "utf8mb3", "latin1", "ascii"})
_SAME = {"utf8": "utf8mb3", "utf8mb3": "utf8"}


def char_bytes_max(charset: str) -> int:
    """Return how many bytes a character of this set may take."""
    return _SETS[charset][0]


def known(charset: str) -> str:
    """Return the character set; raise NeedsOperator for one that nobody has."""
    if charset not in _SETS:
        raise NeedsOperator(
            f"character set {charset!r} is unknown", hint="name a character set of MySQL"
        )
    return charset


def built_in(charset: str) -> str:
    """Return the collation of a character set that servers were built with.

    For utf8mb4 it is that of MariaDB and of MySQL before 8.0.
    """
    return _SETS[known(charset)][1]


def our_own(charset: str) -> str:
    """Return the collation that a character set has where no server chose one."""
    return f"{charset}_bin" if charset in _BINARY else built_in(charset)


def resolve(given: Charset, inherited: tuple[str, str]) -> tuple[str, str]:
    """Return (character set, collation) for what was written and what would be inherited.

    COLLATE DEFAULT is the collation that servers were built with. An unknown set, or a collation
    of another set, raises NeedsOperator.
    """
    charset, collate = given.charset, given.collate
    if given.says_nothing:
        return (inherited[0], built_in(inherited[0])) if given.collate_is_default else inherited
    if charset is None:
        assert collate is not None
        collate = full_name(collate, inherited[0])
        charset = charset_of_collation(collate)
    known(charset)
    collate = our_own(charset) if collate is None else full_name(collate, charset)
    if charset_of_collation(collate) not in (charset, _SAME.get(charset)):
        raise NeedsOperator(
            f"collation {collate!r} is not one of character set {charset!r}",
            hint=f"use a collation whose name starts with {charset}",
        )
    return charset, collate

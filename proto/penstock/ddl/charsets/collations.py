"""Collations of MySQL and MariaDB: the name behind each id, and the charset in a name.

    ids                  names
    1 … 323              the same in both, but for what only one of them has, and but for five
                         Croatian ones, which MariaDB calls croatian_mysql561
    576 608 640 672 736  MariaDB: croatian, myanmar, thai_520_w2, general1400_as_ci, by charset
    1024 + id            MariaDB: collation `id` without padding
    2048 + 256 × n …     MariaDB: the UCA-14 collations of utf8mb3, utf8mb4, ucs2, utf16, utf32

A name begins with its charset. A collation pads when spaces at the end of a text do not count: all
do but `binary`, MariaDB's `nopad` ones and MySQL's of UCA 9.
"""

from __future__ import annotations

import re
from functools import cache

from penstock.errors import NeedsOperator

_FIRST_TEXT = """
    big5_chinese_ci latin2_czech_cs dec8_swedish_ci cp850_general_ci latin1_german1_ci
    hp8_english_ci koi8r_general_ci latin1_swedish_ci latin2_general_ci swe7_swedish_ci
    ascii_general_ci ujis_japanese_ci sjis_japanese_ci cp1251_bulgarian_ci latin1_danish_ci
    hebrew_general_ci - tis620_thai_ci euckr_korean_ci latin7_estonian_cs latin2_hungarian_ci
    koi8u_general_ci cp1251_ukrainian_ci gb2312_chinese_ci greek_general_ci cp1250_general_ci
    latin2_croatian_ci gbk_chinese_ci cp1257_lithuanian_ci latin5_turkish_ci latin1_german2_ci
    armscii8_general_ci utf8mb3_general_ci cp1250_czech_cs ucs2_general_ci cp866_general_ci
    keybcs2_general_ci macce_general_ci macroman_general_ci cp852_general_ci latin7_general_ci
    latin7_general_cs macce_bin cp1250_croatian_ci utf8mb4_general_ci utf8mb4_bin latin1_bin
    latin1_general_ci latin1_general_cs cp1251_bin cp1251_general_ci cp1251_general_cs macroman_bin
    utf16_general_ci utf16_bin utf16le_general_ci cp1256_general_ci cp1257_bin cp1257_general_ci
    utf32_general_ci utf32_bin utf16le_bin binary armscii8_bin ascii_bin cp1250_bin cp1256_bin
    cp866_bin dec8_bin greek_bin hebrew_bin hp8_bin keybcs2_bin koi8r_bin koi8u_bin
    utf8mb3_tolower_ci latin2_bin latin5_bin latin7_bin cp850_bin cp852_bin swe7_bin utf8mb3_bin
    big5_bin euckr_bin gb2312_bin gbk_bin sjis_bin tis620_bin ucs2_bin ujis_bin geostd8_general_ci
    geostd8_bin latin1_spanish_ci cp932_japanese_ci cp932_bin eucjpms_japanese_ci eucjpms_bin
    cp1250_polish_ci
"""
_FIRST = tuple(_FIRST_TEXT.split())
"""Those with the ids 1 to 99; nobody has 17."""
_LANGUAGES_TEXT = """
    icelandic latvian romanian slovenian polish estonian spanish swedish turkish czech danish
    lithuanian slovak spanish2 roman persian esperanto hungarian sinhala german2
"""
_LANGUAGES = tuple(_LANGUAGES_TEXT.split())
_UNICODE = ("unicode", *_LANGUAGES, "croatian", "unicode_520", "vietnamese")
_UNICODE_FROM = {"utf16": 101, "ucs2": 128, "utf32": 160, "utf8mb3": 192, "utf8mb4": 224}
_MARIADB = ("croatian_ci", "myanmar_ci", "thai_520_w2", "general1400_as_ci")
_MARIADB_FROM = {"utf8mb3": 576, "utf8mb4": 608, "ucs2": 640, "utf16": 672, "utf32": 736}
_UCA9_TEXT = "- de_pb is lv ro sl pl et es sv tr cs da lt sk es_trad la fa eo hu hr si vi"
_UCA9_LATER = {306: "ru", 310: "nb", 312: "nn", 314: "sr_latn", 316: "bs", 318: "bg", 320: "gl",
               322: "mn_cyrl"}  # fmt: skip
_SINGLE = {
    159: "ucs2_general_mysql500_ci", 223: "utf8mb3_general_mysql500_ci", 248: "gb18030_chinese_ci",
    249: "gb18030_bin", 250: "gb18030_unicode_520_ci", 303: "utf8mb4_ja_0900_as_cs",
    304: "utf8mb4_ja_0900_as_cs_ks", 305: "utf8mb4_0900_as_ci", 308: "utf8mb4_zh_0900_as_cs",
    309: "utf8mb4_0900_bin",
}  # fmt: skip
_NOPAD, _UCA14, _UCA14_SPAN = 1024, 2048, 256
_UCA14_CHARSETS = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")
_UCA14_LANGUAGES = ("", *_LANGUAGES, "", "", "vietnamese", "croatian")
_NAMELESS_UCA14 = (21, 22)
_CONTEXTUAL = re.compile(r"uca1400_\w+")
_NO_PAD = re.compile(r"_nopad_|_0900_|^binary$")


@cache
def _below_uca14() -> dict[int, str]:
    names = {n: name for n, name in enumerate(_FIRST, 1) if name != "-"}
    for charset, start in _UNICODE_FROM.items():
        names |= {start + n: f"{charset}_{each}_ci" for n, each in enumerate(_UNICODE)}
    for charset, start in _MARIADB_FROM.items():
        names |= {start + n: f"{charset}_{each}" for n, each in enumerate(_MARIADB)}
    for n, language in enumerate(_UCA9_TEXT.split()):
        head = "utf8mb4_" if language == "-" else f"utf8mb4_{language}_"
        names |= {255 + n: f"{head}0900_ai_ci", 278 + n: f"{head}0900_as_cs"}
    for number, language in _UCA9_LATER.items():
        head = f"utf8mb4_{language}_0900"
        names |= {number: f"{head}_ai_ci", number + 1: f"{head}_as_cs"}
    names |= _SINGLE
    padless = {_NOPAD + n: re.sub(r"_(ci|bin)$", r"_nopad_\1", name) for n, name in names.items()}
    return names | {n: name for n, name in padless.items() if "_nopad_" in name}


def collation_name(number: int, *, is_mariadb: bool = False) -> str:
    """Return a server's name of a collation; raise `NeedsOperator` for an id that is unknown."""
    if number < _UCA14:
        found = _below_uca14().get(number)
        if found is not None:
            renamed = is_mariadb and _UNICODE_FROM["utf16"] <= number < _MARIADB_FROM["utf8mb3"]
            return found.replace("_croatian_ci", "_croatian_mysql561_ci") if renamed else found
    else:
        family, left = divmod(number - _UCA14, _UCA14_SPAN)
        language, flags = divmod(left, 8)
        known = family < len(_UCA14_CHARSETS) and language < len(_UCA14_LANGUAGES)
        if known and language not in _NAMELESS_UCA14:
            parts = [_UCA14_CHARSETS[family], "uca1400", _UCA14_LANGUAGES[language]]
            parts += ["nopad" * bool(flags & 4), "as" if flags & 2 else "ai"]
            parts += ["cs" if flags & 1 else "ci"]
            return "_".join(filter(None, parts))
    raise NeedsOperator(
        f"the server's collation {number} is unknown",
        hint="convert the column to utf8mb4, or ask for a newer version of Penstock",
    )


def charset_of_collation(name: str) -> str:
    """Return the charset that a collation's name begins with."""
    return name.split("_", 1)[0]


def full_name(name: str, charset: str) -> str:
    """Return a collation with its charset: MariaDB's UCA-14 ones may be written without."""
    return f"{charset}_{name}" if _CONTEXTUAL.fullmatch(name) else name


def pads(name: str) -> bool:
    """Tell whether texts that differ by spaces at their ends only are equal."""
    return _NO_PAD.search(name.lower()) is None

"""Character sets of MySQL and MariaDB: their default collations, collation ids, and codecs.

Servers disagree about a set's default collation (utf8mb4 alone has three, and sessions may choose).
A caller that knows the session of a statement writes its choice into the text
(`penstock.ddl.rewrite.explicit`). For statements that no server has executed, Penstock
decides like TiDB: the binary collation for the common sets. `plan_ddl` writes that into the
statements, so that every downstream decides alike.

    collation ids        names
    1 … 323              the same in both, except collations of only one server, and except five
                         Croatian collations, which MariaDB calls croatian_mysql561
    576 608 640 672 736  MariaDB: croatian, myanmar, thai_520_w2, general1400_as_ci, by charset
    1024 + id            MariaDB: collation `id` without padding
    2048 + 256 × n …     MariaDB: the UCA-14 collations of utf8mb3, utf8mb4, ucs2, utf16, utf32

A name starts with its charset. A collation pads when spaces at the end of a text do not count: all
do except `binary`, MariaDB's `nopad` collations and MySQL's of UCA 9.

If Python's codec of a single-byte charset differs from the server's, a table from a server's own
CONVERT is used instead. Bytes that a charset does not have are malformed: they are never replaced
by another character.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import cache

from penstock.codes import Code
from penstock.ddl.syntax.statements import CharsetClause, Value, ValueKind
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import DdlContext

_BY_WIDTH = {
    1: "latin1 ascii binary latin2 latin5 latin7 greek hebrew koi8r koi8u tis620 cp850 cp852 cp866"
    " cp1250 cp1251 cp1256 cp1257 macroman macce armscii8 geostd8 dec8 hp8 keybcs2 swe7",
    2: "gbk gb2312 big5 ucs2 sjis cp932 euckr",
    3: "utf8 utf8mb3 ujis eucjpms",
    4: "utf8mb4 gb18030 utf16 utf16le utf32",
}
"""Character sets by their maximum bytes for a character."""
_WIDTHS = {charset: width for width, names in _BY_WIDTH.items() for charset in names.split()}
_BUILT_IN = {
    **dict.fromkeys(("latin1", "dec8", "swe7"), "swedish"),
    **dict.fromkeys(("gbk", "gb18030", "gb2312", "big5"), "chinese"),
    **dict.fromkeys(("sjis", "cp932", "ujis", "eucjpms"), "japanese"),
    **{"euckr": "korean", "latin5": "turkish", "tis620": "thai", "hp8": "english"},
}
"""The language of the servers' built-in default collation, where that is not `general`."""
_BINARY = frozenset({"utf8mb4", "utf8", "utf8mb3", "latin1", "ascii"})
_SAME = {"utf8": "utf8mb3", "utf8mb3": "utf8"}


def char_bytes_max(charset: str) -> int:
    return _WIDTHS[charset]


def known(charset: str) -> str:
    """Return the character set; raise `NeedsOperator` for an unknown name."""
    if charset not in _WIDTHS:
        raise NeedsOperator(
            f"character set {charset!r} is unknown", "name a character set of MySQL", Code.CHARSET
        )
    return charset


def built_in(charset: str) -> str:
    """Return the built-in default collation of a character set.

    For utf8mb4 it is that of MariaDB and of MySQL before 8.0.
    """
    language = _BUILT_IN.get(known(charset), "general")
    return charset if charset == "binary" else f"{charset}_{language}_ci"


def our_own(charset: str) -> str:
    """Return the collation of a character set for which no server chose a collation."""
    return f"{charset}_bin" if charset in _BINARY else built_in(charset)


def resolve(given: CharsetClause, inherited: tuple[str, str]) -> tuple[str, str]:
    """Return (character set, collation) for a written clause and the inherited values.

    COLLATE DEFAULT is the servers' built-in default collation. An unknown set, or a collation of
    another set, raises NeedsOperator.
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
            f"use a collation whose name starts with {charset}",
            Code.CHARSET,
        )
    return charset, collate


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
"""Collations with the ids 1 to 99; 17 is unused."""
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
        "convert the column to utf8mb4, or ask for a newer version of Penstock",
        Code.CHARSET,
    )


def charset_of_collation(name: str) -> str:
    return name.split("_", 1)[0]


def full_name(name: str, charset: str) -> str:
    """Return a collation with its charset, which MariaDB's UCA-14 collations may omit."""
    return f"{charset}_{name}" if _CONTEXTUAL.fullmatch(name) else name


def pads(name: str) -> bool:
    """Return whether texts that differ only in trailing spaces are equal."""
    return _NO_PAD.search(name.lower()) is None


_UNDEFINED = "\ufffe"  # The marker of codecs.charmap_decode for "no such byte".

_CODECS = {
    "big5": "big5", "latin2": "iso8859-2", "cp850": "cp850", "hp8": "hp-roman8", "koi8r": "koi8-r",
    "ascii": "ascii", "ujis": "euc_jp", "sjis": "shift_jis", "tis620": "tis-620",
    "euckr": "cp949", "gb2312": "gb2312", "cp1250": "cp1250", "gbk": "gbk", "latin5": "iso8859-9",
    "utf8mb3": "utf-8", "ucs2": "utf-16-be", "macce": "mac-latin2",
    "macroman": "mac-roman", "cp852": "cp852", "latin7": "iso8859-13", "cp1251": "cp1251",
    "utf16": "utf-16-be", "utf16le": "utf-16-le", "cp1257": "cp1257", "utf32": "utf-32-be",
    "utf8mb4": "utf-8", "cp932": "cp932", "eucjpms": "euc_jp", "gb18030": "gb18030",
}  # fmt: skip

_CHANGED: dict[str, tuple[str, dict[int, str]]] = {
    "latin1": ("cp1252", {n: chr(n) for n in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}),
    "koi8u": ("koi8-u", {0x95: "•"}),
    "hebrew": ("iso8859-8", {0xAF: "‾"}),
    "cp866": ("cp866", {0xFC: "ⁿ", 0xFD: "²"}),
    "greek": ("iso8859-7", {0xA1: "ʽ", 0xA2: "ʼ"} | dict.fromkeys((0xA4, 0xA5, 0xAA), _UNDEFINED)),
    "cp1256": ("cp1256", dict.fromkeys(
        (0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF), _UNDEFINED)),
    "swe7": ("ascii", dict(zip(b"@[\\]^`{|}~\x7f", "ÉÄÖÅÜéäöåü" + _UNDEFINED, strict=True))),
    "dec8": ("latin-1", {0xA8: "¤", 0xD7: "Œ", 0xDD: "Ÿ", 0xF7: "œ", 0xFD: "ÿ"} | dict.fromkeys(
        b"\xa4\xa6\xac\xad\xae\xaf\xb4\xb8\xbe\xd0\xde\xf0\xfe\xff", _UNDEFINED)),
}  # fmt: skip
"""Charset: the nearest codec, and the bytes with another meaning."""
_ASCII = bytes(range(0x80)).decode("ascii")
_ARMSCII8 = (
    _ASCII
    + bytes(range(0x80, 0xA1)).decode("latin-1")
    + (
        "❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈ"
        "ոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'"
    )
)
_KEYBCS2 = _ASCII + (
    "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐"
    "└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u00a0"
)
_GEOSTD8 = (
    _ASCII
    + (
        "€\ufffe‚\ufffe„…†‡\ufffe‰\ufffe‹\ufffe\ufffe\ufffe\ufffe\ufffe‘’“”•–—\ufffe\ufffe\ufffe›\ufffe\ufffe\ufffe\ufffe\u00a0¡¢£¤¥¦§¨©ª«¬\u00ad®¯°±²³´µ¶·¸¹º»¼½¾¿"
        "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ"
    )
    + _UNDEFINED * 23
    + "№"
    + _UNDEFINED * 2
)
_UNIT_BYTES = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}
_BASES = {ValueKind.HEX: 16, ValueKind.BITS: 2}
_TABLES = {"armscii8": _ARMSCII8, "keybcs2": _KEYBCS2, "geostd8": _GEOSTD8}


@dataclass(frozen=True, slots=True)
class Charset:
    """The decoding of bytes to text: Python's codec `codec`, or `table`, a character for each byte.

    `binary` has neither: its values stay bytes.
    """

    name: str
    codec: str | None = None
    table: str | None = None

    @property
    def unit_bytes(self) -> int:
        return _UNIT_BYTES.get(self.name, 1)

    @property
    def is_binary(self) -> bool:
        return self.codec is None and self.table is None

    def decode(self, raw: bytes) -> str:
        """Return the text; raise UnicodeDecodeError for bytes that this charset does not have."""
        if self.table is not None:
            return codecs.charmap_decode(raw, "strict", self.table)[0]
        assert self.codec is not None, "bytes are no text"
        return raw.decode(self.codec)

    def encode(self, text: str) -> bytes:
        """Return the bytes; raise UnicodeEncodeError for text that this charset does not have."""
        if self.table is not None:
            known = {ord(c): n for n, c in enumerate(self.table) if c != _UNDEFINED}
            return codecs.charmap_encode(text, "strict", known)[0]
        assert self.codec is not None, "bytes are no text"
        return text.encode(self.codec)

    def kept(self, text: str) -> str:
        """Return a literal as servers store it: `?` replaces characters outside the charset."""
        return text if self.is_binary else "".join(c if self._has(c) else "?" for c in text)

    def _has(self, character: str) -> bool:
        if self.name in _WITHIN_BMP and character > "\uffff":
            return False
        try:
            self.encode(character)
        except UnicodeEncodeError:
            return False
        return True


_WITHIN_BMP = ("utf8mb3", "ucs2")


def connection_charset(context: DdlContext | None) -> Charset | None:
    """Return the charset that a session converts literals to, None if it is unknown."""
    collation = None if context is None else dict(context.variables).get("collation_connection")
    return None if collation is None else charset_named(charset_of_collation(collation))


@cache
def charset_named(name: str) -> Charset:
    """Return a charset by name (`utf8` is `utf8mb3`); `NeedsOperator` if it is unknown."""
    name = "utf8mb3" if name == "utf8" else name
    if name == "binary":
        return Charset(name)
    if name in _CODECS:
        return Charset(name, codec=_CODECS[name])
    if name in _TABLES:
        return Charset(name, table=_TABLES[name])
    if name in _CHANGED:
        codec, changes = _CHANGED[name]
        plain = (bytes([n]).decode(codec, "replace") for n in range(256))
        table = (changes.get(n, _UNDEFINED if c == "\ufffd" else c) for n, c in enumerate(plain))
        return Charset(name, table="".join(table))
    raise NeedsOperator(
        f"charset {name!r} is unknown", "convert the column to utf8mb4", Code.CHARSET
    )


def literal_in(charset: Charset, value: Value) -> str:
    """Return a literal's text: hexadecimal and bits are bytes of the character set.

    They are padded with leading zeros to a whole character; literals of `binary` must be UTF-8.
    Raises NeedsOperator where they are not a text.
    """
    base = _BASES.get(value.kind)
    if base is None:
        return value.text
    unit = 8 * charset.unit_bytes
    size = -(-len(value.text) * (4 if base == 16 else 1) // unit) * charset.unit_bytes
    raw = int(value.text or "0", base).to_bytes(size, "big")
    try:
        return raw.decode() if charset.is_binary else charset.decode(raw)
    except UnicodeDecodeError:
        raise NeedsOperator(
            f"0x{raw.hex()} is no text in character set {charset.name}",
            "write it as a string, or as bytes that this character set has",
            Code.CHARSET,
        ) from None

"""From a collation's id, which is what binlogs carry, to the charset that its texts are read in.

    ids                  charset
    1 … 323              as listed below, the same in MySQL and MariaDB
    576 640 672 736 608  MariaDB: three collations of utf8mb3, ucs2, utf16, utf32, utf8mb4
    1024 + id            MariaDB: collation `id` without padding
    2048 + 256 × n …     MariaDB: the UCA-14 collations of utf8mb3, utf8mb4, ucs2, utf16, utf32

Where Python's codec differs from what the server does with a charset of single bytes, a table does
it, taken from a server's own CONVERT. Bytes that a charset does not have are malformed: no
character is ever put in their place.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from functools import cache

from penstock.errors import NeedsOperator

_UNDEFINED = "\ufffe"  # What codecs.charmap_decode takes for "no such byte".
BINARY = 63
"""The collation id of bytes that are no text."""

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
"""Charset: the codec that is nearest, and the bytes that mean something else."""
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
_TABLES = {"armscii8": _ARMSCII8, "keybcs2": _KEYBCS2, "geostd8": _GEOSTD8}

_IDS = {
    "big5": (1, 84), "latin2": (2, 9, 21, 27, 77), "dec8": (3, 69), "cp850": (4, 80),
    "latin1": (5, 8, 15, 31, 47, 48, 49, 94), "hp8": (6, 72), "koi8r": (7, 74), "swe7": (10, 82),
    "ascii": (11, 65), "ujis": (12, 91), "sjis": (13, 88), "cp1251": (14, 23, 50, 51, 52),
    "hebrew": (16, 71), "tis620": (18, 89), "euckr": (19, 85), "latin7": (20, 41, 42, 79),
    "koi8u": (22, 75), "gb2312": (24, 86), "greek": (25, 70), "cp1250": (26, 34, 44, 66, 99),
    "gbk": (28, 87), "cp1257": (29, 58, 59), "latin5": (30, 78), "armscii8": (32, 64),
    "ucs2": (35, 90, *range(128, 152), 159, *range(640, 643)), "cp866": (36, 68),
    "keybcs2": (37, 73), "macce": (38, 43), "macroman": (39, 53), "cp852": (40, 81),
    "utf8mb3": (33, 76, 83, *range(192, 216), 223, *range(576, 579)),
    "utf8mb4": (45, 46, *range(224, 248), *range(255, 324), *range(608, 611)),
    "utf16": (54, 55, *range(101, 125), *range(672, 675)), "utf16le": (56, 62),
    "cp1256": (57, 67), "utf32": (60, 61, *range(160, 184), *range(736, 739)), "geostd8": (92, 93),
    "cp932": (95, 96), "eucjpms": (97, 98), "gb18030": (248, 249, 250), "binary": (BINARY,),
}  # fmt: skip
_BY_ID = {number: name for name, numbers in _IDS.items() for number in numbers}
_NOPAD, _UCA14, _UCA14_SPAN = 1024, 2048, 256
_UCA14_CHARSETS = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")


@dataclass(frozen=True, slots=True)
class Charset:
    """How bytes are text: by Python's codec `codec`, or by `table`, a character for each byte.

    `binary` has neither: its values stay bytes.
    """

    name: str
    codec: str | None = None
    table: str | None = None

    @property
    def is_binary(self) -> bool:
        """Tell whether values are bytes and no text."""
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


@cache
def charset_named(name: str) -> Charset:
    """Return a charset by its name (`utf8` is `utf8mb3`); raise `NeedsOperator` for an unknown."""
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
    raise NeedsOperator(f"charset {name!r} is unknown", hint="convert the column to utf8mb4")


def charset_name(collation_id: int) -> str:
    """Return the charset of a collation; raise `NeedsOperator` for an id that is unknown."""
    known = _BY_ID.get(collation_id)
    if known is None and _NOPAD < collation_id < _UCA14:
        known = _BY_ID.get(collation_id - _NOPAD)
    if known is None and collation_id >= _UCA14:
        family = (collation_id - _UCA14) // _UCA14_SPAN
        known = _UCA14_CHARSETS[family] if family < len(_UCA14_CHARSETS) else None
    if known is None:
        raise NeedsOperator(
            f"the server's collation {collation_id} is unknown",
            hint="convert the column to utf8mb4, or ask for a newer version of Penstock",
        )
    return known


def charset_of(collation_id: int) -> Charset:
    """Return how texts of a collation are read; raise `NeedsOperator` for an unknown id."""
    return charset_named(charset_name(collation_id))

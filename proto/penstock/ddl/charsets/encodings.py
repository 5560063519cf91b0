"""How the bytes of each character set are text, and text its bytes.

Where Python's codec differs from what the server does with a charset of single bytes, a table does
it, taken from a server's own CONVERT. Bytes that a charset does not have are malformed: no
character is ever put in their place.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from functools import cache

from penstock.ddl.syntax.elements import Value, ValueKind
from penstock.errors import NeedsOperator

_UNDEFINED = "\ufffe"  # What codecs.charmap_decode takes for "no such byte".

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
_UNIT_BYTES = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}
_BASES = {ValueKind.HEX: 16, ValueKind.BITS: 2}
_TABLES = {"armscii8": _ARMSCII8, "keybcs2": _KEYBCS2, "geostd8": _GEOSTD8}


@dataclass(frozen=True, slots=True)
class Charset:
    """How bytes are text: by Python's codec `codec`, or by `table`, a character for each byte.

    `binary` has neither: its values stay bytes.
    """

    name: str
    codec: str | None = None
    table: str | None = None

    @property
    def unit_bytes(self) -> int:
        """How many bytes the shortest character has."""
        return _UNIT_BYTES.get(self.name, 1)

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


def literal_in(charset: Charset, value: Value) -> str:
    """Return a literal's text: hexadecimal and bits are bytes of the character set.

    Zeros stand before them up to a whole character; those of `binary` have to be UTF-8. Raises
    NeedsOperator where they are no text.
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
            hint="write it as a string, or as bytes that this character set has",
        ) from None

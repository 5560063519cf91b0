"""Writes JSON documents as SQL literals from which a MySQL makes each scalar with its type.

If text expresses the document completely, the literal is that text. Otherwise it is

    /*!50708 JSON_SET(CAST(*/'{"a": 1.10}'/*!50708 AS JSON),'$."a"',CAST('1.10' AS DECIMAL(3,2)))*/

A MariaDB, whose JSON is text, skips comments for versions between 5.7 and its own, up to the first
end of a comment: inside them, a path has its asterisks and quotes escaped.

    scalar                         in a MySQL
    DECIMAL, DATE, TIME, DATETIME  the same
    bytes of VARBINARY (type 15)   the same
    TIMESTAMP                      DATETIME
    bytes of BLOB, BIT and others  their text as a string

The last two types can only be made by a subquery over JSON_TABLE, which a TiDB does not have.
"""

from __future__ import annotations

import json
from binascii import hexlify

from penstock.datum.jsonb import DECIMAL, Typed, TypedJson, encode_text, read_text, typed_scalars

_TIMES = {7: "DATETIME(6)", 10: "DATE", 11: "TIME(6)", 12: "DATETIME(6)"}
_VARBINARY = 15


def text_literal(text: str) -> str:
    """Return a text as a literal for sessions without NO_BACKSLASH_ESCAPES."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def json_literal(text: str) -> str:
    quoted = text_literal(text)
    if not isinstance(text, TypedJson):
        return quoted
    sets = "".join(map(_set, typed_scalars(text.binary)))
    return f"/*!50708 JSON_SET(CAST(*/{quoted}/*!50708 AS JSON){sets})*/" if sets else quoted


def literal_of_text(text: str) -> str:
    """Return the literal of a document printed by a server, as its row would bring it.

    Numbers keep their digits. Keys have the order of the binary form: in a MariaDB, whose JSON is
    text, a table without a key has no other way to find the row again.
    """
    return json_literal(read_text(encode_text(text), 0)[0])


def _set(scalar: Typed) -> str:
    made = _expression(scalar.type, scalar.value)
    return f",{text_literal(_path(scalar.path))},{made}" if made else ""


def _expression(type_: int, value: str | bytes) -> str:
    if isinstance(value, bytes):
        return f"x'{hexlify(value).decode()}'" if type_ == _VARBINARY else ""
    if type_ != DECIMAL:
        return f"CAST('{value}' AS {_TIMES[type_]})"
    whole, _, fraction = value.lstrip("-").partition(".")
    digits = max(len(whole.lstrip("0")) + len(fraction), 1)
    return f"CAST('{value}' AS DECIMAL({digits},{len(fraction)}))"


def _path(path: tuple[str | int, ...]) -> str:
    legs = [f"[{leg}]" if isinstance(leg, int) else f".{json.dumps(leg)}" for leg in path]
    return "$" + "".join(legs).replace("*", "\\u002a").replace("'", "\\u0027")

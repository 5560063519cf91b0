"""Refuses new names that no MySQL or MariaDB accepts, before any object has them.

Both servers keep names in utf8mb3: no character above U+FFFF, and no NUL (error 1300). A database
and a table are a file each, whose name has five bytes for most characters beyond ASCII (`@4e2d`); a
name that does not fit a file system fails there, however few characters it has.

A name that is already in the schema is not checked: an earlier version may have accepted it, and
DROP and RENAME must stay possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.codes import Code
from penstock.ddl.catalog import Catalog
from penstock.ddl.syntax.lexer import Kind, Source
from penstock.errors import NeedsOperator

_UNFIT = re.compile("[\0\ud800-\udfff\U00010000-\U0010ffff]")
_FILE_BYTES_MAX = 255 - len(".ibd")
_ONE_BYTE = re.compile(r"[0-9A-Za-z_$]")
_THREE_BYTES = re.compile("[\u00c0-\u05ff\u1e00-\u1fff\u2160-\u217f\u24b0-\u24ef\uff20-\uff5f]")
_RAW_FILE = "#mysql50#"
"""After this prefix, a server reads the rest as a file name, not as a table name."""


def check_new_names(source: Source, catalog: Catalog) -> None:
    """Raise `NeedsOperator` for a name with a character that servers reject in names."""
    if _UNFIT.search(source.text) is None:
        return
    known = set(_known(catalog))
    for token in source.tokens:
        unfit = _UNFIT.search(token.text)
        if unfit and token.kind in (Kind.WORD, Kind.QUOTED) and token.text not in known:
            raise NeedsOperator(
                f"the name {token.text!r} has the character U+{ord(unfit[0]):04X}, which MySQL and"
                " MariaDB do not allow in names",
                "use characters from U+0001 to U+FFFF",
                Code.DDL_DEFINITION,
            )


def check_file_name(name: str) -> None:
    """Raise `NeedsOperator` for a new database or table that cannot be named as a file."""
    threes = len(_THREE_BYTES.findall(name))
    ones = len(_ONE_BYTE.findall(name))
    size = ones + 3 * threes + 5 * (len(name) - ones - threes)
    if size > _FILE_BYTES_MAX or name.lower().startswith(_RAW_FILE):
        raise NeedsOperator(
            f"MySQL and MariaDB have no file for the name {name!r}: its file name has {size} bytes",
            f"choose a name whose file name has at most {_FILE_BYTES_MAX} bytes (each letter,"
            f" digit and _ of ASCII 1, most other characters 5) and that is not {_RAW_FILE}…",
            Code.DDL_DEFINITION,
        )


def _known(catalog: Catalog) -> Iterator[str]:
    yield from (schema.name for schema in catalog.schemas())
    for _, table in catalog.tables():
        yield table.name
        yield from (column.name for column in table.columns)
        yield from (index.name for index in table.indexes)
        yield from table.partitions or ()

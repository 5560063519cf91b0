"""Failed statements: what one did that its server logged with an error. Pure.

CREATE OR REPLACE TABLE drops the table first. Where it cannot make the new one, MariaDB logs the
statement with the error, and the table is gone. Of a DROP of several tables of which one does not
exist, MariaDB, and MySQL before 8.0, drop the others.
"""

from __future__ import annotations

import re

from penstock.ddl.syntax.lexer import quote_path
from pumpclient.mysql.translate.statements.changed_tables import changed_tables

_REPLACE = re.compile(r"^CREATE\s+OR\s+REPLACE\s+TABLE\b", re.IGNORECASE)
_DROP = re.compile(r"^DROP\s+(TABLES?|VIEW|SEQUENCE)\s+(?!IF\s+EXISTS\b)", re.IGNORECASE)
_CURRENT = "\0"
"""Stands for the current database, which has no such name."""


def left_by_failed(text: str) -> str:
    """Return a statement that does what this one, in plain text, did before it failed."""
    if _DROP.match(text):
        return _DROP.sub(lambda found: f"{found[0]}IF EXISTS ", text, count=1)
    names = changed_tables(text, _CURRENT) if _REPLACE.match(text) else ()
    if len(names) != 1:
        return text
    return f"DROP TABLE IF EXISTS {quote_path(*(name for name in names[0] if name != _CURRENT))}"

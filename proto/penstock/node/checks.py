"""Checks: what a server lacks for its part in replication, and the statements that correct it.

    ok       binlog_format: ROW
    FAILED   privileges: 'me'@'%' has no RELOAD, SELECT
             GRANT RELOAD, SELECT ON *.* TO 'me'@'%';
    notice   engines: 2 tables have no transactions: writes to them wait while the load reads them
             shop.log (MyISAM)
             shop.visit (MEMORY)

One kind of finding is one check, with the objects concerned beneath it. SHOW GRANTS lists the
privileges of an account on every server, including those that MariaDB grants to PUBLIC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_GRANT = re.compile(r"GRANT (.*?) ON (?:TABLE )?(.+?) TO ", re.IGNORECASE | re.DOTALL)
_COLUMNS = re.compile(r"\([^)]*\)")
_ALL = {"ALL", "ALL PRIVILEGES"}


@dataclass(frozen=True, slots=True)
class Check:
    """One answer; a failed check that is not `required` does not prevent a start."""

    name: str
    passed: bool
    found: str
    hint: str = ""
    required: bool = True
    fixes: tuple[str, ...] = ()
    """Statements, or lines of a file or a command, that can be copied."""
    names: tuple[str, ...] = ()
    """The objects concerned."""

    @property
    def verdict(self) -> str:
        return "ok" if self.passed else "FAILED" if self.required else "notice"

    @property
    def remedy(self) -> str:
        return "; ".join((*self.fixes, *filter(None, (self.hint,))))

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.lower(), "required": self.required, "name": self.name,
            "found": self.found, "hint": self.hint, "names": self.names, "fixes": self.fixes,
        }  # fmt: skip

    def __str__(self) -> str:
        below = (*self.names, *filter(None, (self.hint,)), *self.fixes)
        return "\n         ".join((f"{self.verdict:8} {self.name}: {self.found}", *below))


def privileges(grants: Iterable[str]) -> dict[str, set[str]]:
    """Return the privileges that SHOW GRANTS lists, by their scope: `*.*`, `shop.*`, `shop.t`."""
    found: dict[str, set[str]] = {}
    for line in grants:
        if grant := _GRANT.match(line):
            # In the pattern of a schema, `_` and `%` may be escaped.
            scope = re.sub(r"\\([_%])", r"\1", grant[2].replace("`", "")).lower()
            names = _COLUMNS.sub("", grant[1]).split(",")
            found.setdefault(scope, set()).update(name.strip().upper() for name in names)
    return found


def lacking(wanted: Mapping[str, Iterable[str]], granted: set[str]) -> list[str]:
    """Return the wanted privileges that are not granted, each under one of its names."""
    return [name for name, names in wanted.items() if granted.isdisjoint({*_ALL, name, *names})]


def account_text(current_user: str) -> str:
    """Return the answer of CURRENT_USER() as statements write it: 'user'@'host'."""
    user, _, host = current_user.rpartition("@")
    return "@".join("'{}'".format(part.replace("'", "''")) for part in (user, host))


def granting(missing: Iterable[str], scope: str, account: str) -> tuple[str, ...]:
    return (f"GRANT {', '.join(missing)} ON {scope} TO {account};",)

"""Online DDL: gh-ost and pt-osc alter a copy of a table and put it into the table's place.

    _t_gho, _t_new          the copy (shadow): its ALTERs are kept here, and not executed
    _t_ghc, _t_del, _t_old  auxiliary tables of the tools (trash): not executed
    RENAME copy TO t        the kept ALTERs are executed on t

The state is a small dict {shadow as "schema.table": [statements]}, which the source keeps with its
checkpoint; `OnlineDdl` changes a copy of it, never the original.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.codes import Code
from penstock.errors import NeedsOperator
from pumpclient.mysql.rows.table_map import Name

SHADOW = (r"^_(.+)_(?:new|gho)$",)
TRASH = (r"^_(.+)_(?:ghc|del|old)$",)
_HINT = "give the statement to run instead, or skip it"

Kept = Mapping[str, Sequence[str]]


class Role(Enum):
    """A table's role for the tools."""

    REAL = "real"
    SHADOW = "shadow"
    TRASH = "trash"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The statements to run on the real table, and the new state; None means unchanged."""

    statements: Sequence[str] | None
    kept: Kept


class OnlineDdl:
    """The rules of both tools; raises `NeedsOperator` for invalid patterns."""

    def __init__(self, shadow: Sequence[str] = SHADOW, trash: Sequence[str] = TRASH) -> None:
        """Compile; each pattern has one group, the name of the real table."""
        self._shadow = [_compiled(pattern) for pattern in shadow]
        self._trash = [_compiled(pattern) for pattern in trash]

    def role(self, table: str) -> tuple[Role, str]:
        for role, patterns in ((Role.SHADOW, self._shadow), (Role.TRASH, self._trash)):
            for pattern in patterns:
                found = pattern.match(table)
                if found:
                    return role, found[1]
        return Role.REAL, table

    def is_copy(self, table: str) -> bool:
        return self.role(table)[0] is not Role.REAL

    def changed(self, kind: str, table: Name, statement: str, kept: Kept) -> Outcome:
        role, _ = self.role(table[1])
        if role is Role.REAL:
            return Outcome(None, kept)
        if role is Role.TRASH:
            return Outcome((), kept)
        key = ".".join(table)
        if kind in ("CREATE", "DROP"):
            return Outcome((), {name: made for name, made in kept.items() if name != key})
        return Outcome((), {**kept, key: [*kept.get(key, ()), statement]})

    def renamed(self, old: Name, new: Name, kept: Kept) -> Outcome:
        """Return the outcome of one pair of a RENAME: statements about the shadow, or nothing.

        The caller runs them on the real table. Raises `NeedsOperator` for a pair that the tools
        never produce.
        """
        before, after = self.role(old[1])[0], self.role(new[1])[0]
        if before is Role.REAL:
            if after is Role.SHADOW:
                raise _odd(old, new, "a table becomes a copy")
            return Outcome(() if after is Role.TRASH else None, kept)
        if before is Role.TRASH:
            if after is Role.SHADOW:
                raise _odd(old, new, "what is left over becomes a copy")
            return Outcome((), kept)
        if after is Role.SHADOW:
            raise _odd(old, new, "a copy becomes another copy")
        key = ".".join(old)
        rest = {name: made for name, made in kept.items() if name != key}
        if after is Role.TRASH:
            return Outcome((), rest)
        if not kept.get(key):
            raise _odd(old, new, "nothing is known of what was altered in it")
        return Outcome(tuple(kept[key]), rest)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise NeedsOperator(
            f"{pattern!r} is no pattern: {error}", hint="write a regex", code=Code.FILTER_RULE
        ) from error
    if compiled.groups != 1 or not (pattern.startswith("^") and pattern.endswith("$")):
        raise NeedsOperator(
            f"{pattern!r} must have one group, the table's name, and be anchored at both ends",
            hint=f"such as {SHADOW[0]!r}",
            code=Code.FILTER_RULE,
        )
    return compiled


def _odd(old: Name, new: Name, why: str) -> NeedsOperator:
    pair = f"RENAME {'.'.join(old)} TO {'.'.join(new)}"
    return NeedsOperator(
        f"{pair}: {why}, so the online DDL cannot be followed", hint=_HINT, code=Code.ONLINE_DDL
    )

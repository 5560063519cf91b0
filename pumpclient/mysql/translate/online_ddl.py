"""Online DDL: gh-ost and pt-osc alter a copy of a table and put it into the table's place.

    _t_gho, _t_new          the copy (shadow): its ALTERs are kept here, and not executed
    _t_ghc, _t_del, _t_old  auxiliary tables of the tools (trash): not executed
    RENAME copy TO t        the kept ALTERs are executed on t

The state is a small dict {shadow as "schema.table": [statements]}, which the source keeps with its
checkpoint; `OnlineDdl` changes a copy of it, never the original.
"""

import re
from collections.abc import Mapping, Sequence

from penstock.codes import Code
from penstock.errors import NeedsOperator
from pumpclient.mysql.rows.table_map import Name

SHADOW = (r"^_(.+)_(?:new|gho)$",)
TRASH = (r"^_(.+)_(?:ghc|del|old)$",)

Kept = Mapping[str, Sequence[str]]


_REAL, _SHADOW, _TRASH = range(3)
"""A table's role for the tools."""
_ODD = {
    (_REAL, _SHADOW): "a table becomes a copy",
    (_TRASH, _SHADOW): "what is left over becomes a copy",
    (_SHADOW, _SHADOW): "a copy becomes another copy",
}
"""Renames, by role before and after, that the tools never do."""


class OnlineDdl:
    """The rules of both tools; raises `NeedsOperator` for invalid patterns."""

    def __init__(self, shadow: Sequence[str] = SHADOW, trash: Sequence[str] = TRASH) -> None:
        """Compile; each pattern has one group, the name of the real table."""
        self._shadow = [_compiled(pattern) for pattern in shadow]
        self._trash = [_compiled(pattern) for pattern in trash]

    def _role(self, table: str) -> int:
        for role, patterns in ((_SHADOW, self._shadow), (_TRASH, self._trash)):
            if any(pattern.match(table) for pattern in patterns):
                return role
        return _REAL

    def is_copy(self, table: str) -> bool:
        return self._role(table) != _REAL

    def changed(
        self, kind: str, table: Name, statement: str, kept: Kept
    ) -> tuple[Sequence[str] | None, Kept]:
        """Return the statements to run on the real table, and the new state.

        None stands for the statement itself, unchanged.
        """
        role, key = self._role(table[1]), ".".join(table)
        if role == _REAL:
            return None, kept
        if role == _TRASH:
            return (), kept
        if kind in ("CREATE", "DROP"):
            return (), {name: made for name, made in kept.items() if name != key}
        return (), {**kept, key: [*kept.get(key, ()), statement]}

    def renamed(self, old: Name, new: Name, kept: Kept) -> tuple[Sequence[str] | None, Kept]:
        """Return the same for one pair of a RENAME: statements about the shadow, or nothing.

        Raises `NeedsOperator` for a pair that the tools never produce.
        """
        before, after = self._role(old[1]), self._role(new[1])
        key, why = ".".join(old), _ODD.get((before, after))
        if (before, after) == (_SHADOW, _REAL) and not kept.get(key):
            why = "nothing is known of what was altered in it"
        if why is not None:
            raise NeedsOperator(
                f"RENAME {key} TO {'.'.join(new)}: {why}, so the online DDL cannot be followed",
                "give the statement to run instead, or skip it",
                Code.ONLINE_DDL,
            )
        if before == _REAL:
            return (() if after == _TRASH else None), kept
        if before == _TRASH:
            return (), kept
        rest = {name: made for name, made in kept.items() if name != key}
        return (tuple(kept[key]) if after == _REAL else ()), rest


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise NeedsOperator(
            f"{pattern!r} is no pattern: {error}", "write a regex", Code.FILTER_RULE
        ) from error
    if compiled.groups != 1 or not (pattern.startswith("^") and pattern.endswith("$")):
        raise NeedsOperator(
            f"{pattern!r} must have one group, the table's name, and be anchored at both ends",
            f"such as {SHADOW[0]!r}",
            Code.FILTER_RULE,
        )
    return compiled

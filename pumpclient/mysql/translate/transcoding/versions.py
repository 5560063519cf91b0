"""Which rows of a system-versioned table are current ones. Pure.

    the server does      and logs                                      here
    INSERT               insert (…, end of time)                       insert
    UPDATE               update (…, end of time) → (…, end of time)    update
                         insert (as it was, …, now)                    nothing
    DELETE               update (…, end of time) → (…, now)            delete
    DELETE HISTORY       delete (…, before now)                        nothing

An update that leaves all but the start of its row's time as it was is nothing either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from penstock.errors import Malformed
from penstock.wire.binlog import MutationType
from pumpclient.mysql.rows.rows_event import Kind

_ENDS_OF_TIME = frozenset({"2038-01-19 03:14:07.999999", "2106-02-07 06:28:15.999999"})
"""ROW END of a current row in UTC: before MariaDB 11.5, and where seconds have 32 bits; since."""

Step = tuple[MutationType, list[bytes]]


def current_steps(
    kind: Kind, row_ends: Sequence[str | None], rows: Sequence[bytes]
) -> tuple[list[Step], int]:
    """Return what an event does to current rows, in its order, and how many are of history.

    `row_ends` and `rows` are those of all its images. Raises `Malformed` for a row of history that
    becomes current, which no server does.
    """
    are_current = [end in _ENDS_OF_TIME for end in row_ends]
    if kind is not Kind.UPDATE:
        kept = [row for row, stays in zip(rows, are_current, strict=True) if stays]
        done = MutationType.INSERT if kind is Kind.INSERT else MutationType.DELETE
        return [(done, kept)] if kept else [], len(rows) - len(kept)
    if len(rows) % 2:
        raise ValueError("a row before its update lacks the row after")
    pairs = zip(rows[::2], rows[1::2], are_current[::2], are_current[1::2], strict=True)
    changes = list(_changes(pairs))
    steps = [
        (done, [row for _, row in group if row]) for done, group in groupby(changes, itemgetter(0))
    ]
    return [step for step in steps if step[1]], len(rows) // 2 - len(changes)


def _changes(
    pairs: Iterator[tuple[bytes, bytes, bool, bool]],
) -> Iterator[tuple[MutationType, bytes]]:
    for before, after, was_current, is_current in pairs:
        if was_current and is_current:
            yield MutationType.UPDATE, before + after if before != after else b""
        elif was_current:
            yield MutationType.DELETE, before
        elif is_current:
            raise Malformed(
                "a row of its history becomes current", hint="compare the table here with it there"
            )

"""Overrides: an operator's answers to a source's refusals, as edits of its checkpoint.

Pure.

    skip, replace SQL, inject SQL    about one place of the server's binlog
    skip-table DB.TABLE              about all of a table from here on
    reload DB.TABLE                  the same, until it is loaded again with its merged tables
    repaired DB.TABLE                of `penstock verify`: foreign keys' changes are downstream
    continue                         about a server whose history differs from the known history
    revoke FILE:POSITION | DB.TABLE  takes one of these back, while nothing was skipped by it

All overrides are in the checkpoint, so they belong to the source and outlive its process. Overrides
of a place end with the server's history, since another history has the same places. They are made
between two of the source's runs, or with the process stopped: all transactions before the
checkpoint's place are committed, so a table is skipped from the start of a transaction on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator
from pumpclient.mysql.relay.layout import FileName, Location
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.state.checkpoint import Checkpoint
from pumpclient.mysql.source.state.skipped import SkippedTable
from pumpclient.mysql.translate.outputs import Refused, place_text
from pumpclient.schema import split_name

log = logging.getLogger(__name__)

Edit = Callable[[Checkpoint], tuple[Checkpoint, str]]
"""Returns a changed checkpoint and a report of the change; raises `NeedsOperator`."""

VERBS = ("skip", "replace", "inject")


def override_at(verb: str, place: str, statements: Sequence[str]) -> Edit:
    def edit(checkpoint: Checkpoint) -> tuple[Checkpoint, str]:
        override = {"verb": verb, "statements": tuple(statements)}
        rulings = {**checkpoint.rulings, place: override}
        return replace(checkpoint, rulings=rulings), f"{verb} at {place}: noted\n"

    return edit


def table_skipped(name: Name, is_replicated: Callable[[str, str], bool]) -> Edit:
    label = ".".join(name)

    def edit(checkpoint: Checkpoint) -> tuple[Checkpoint, str]:
        if not is_replicated(*name):
            raise NeedsOperator(
                f"the filters skip {label} already", "there is nothing to do", Code.OVERRIDE_INVALID
            )
        before = _of(checkpoint, name)
        if before.is_whole and not before.reload:
            return checkpoint, f"{label} is skipped since {before.since} already\n"
        if before.reload:
            ended = _without_reload(checkpoint, before.reload)
            return ended, (
                f"{label} stays skipped: its reload ends, and downstream is what it has brought;"
                f" only penstock source reload {label} takes it back\n"
            )
        made = replace(before, is_whole=True, since=checkpoint.done)
        return _with(checkpoint, made), (
            f"{label} is skipped from {checkpoint.done} on: its rows and statements are counted,"
            f" see status; penstock source revoke {label} takes it back while nothing was counted\n"
        )

    return edit


def tables_reloaded(names: Sequence[Name], gone: Collection[Name] = ()) -> Edit:
    """Return the edit that requests a reload of tables; until it is done, they are skipped.

    `names` are all tables that are routed into one. The tables in `gone` are missing on the server:
    they must be skipped already, so that the source has seen or will see their DROP.
    """
    label = ", ".join(".".join(name) for name in names)

    def edit(checkpoint: Checkpoint) -> tuple[Checkpoint, str]:
        for name in gone:
            if not _of(checkpoint, name).is_whole:
                raise NeedsOperator(
                    f"the server does not have {'.'.join(name)}, so it cannot be loaded",
                    f"check the name; if the table was dropped or renamed, penstock source"
                    f" skip-table {'.'.join(name)} lets the source pass its rows up to there",
                    Code.OVERRIDE_INVALID,
                )
        number = checkpoint.reloads + 1
        changed = replace(checkpoint, reloads=number)
        for name in names:
            before = _of(changed, name)
            since = before.since if before.is_whole else checkpoint.done
            made = replace(before, is_whole=True, since=since, reload=number)
            changed = _with(changed, made)
        return changed, (
            f"{label} loaded again, reload {number}: downstream the table is dropped, created and"
            " filled while all others continue; see status\n"
        )

    return edit


def table_repaired(label: str, last: str) -> Edit:
    """Return the edit that forgets a table's note of foreign keys' changes, the last at `last`.

    The table was repaired after it was at `last`; a later change stays noted.
    """

    def edit(checkpoint: Checkpoint) -> tuple[Checkpoint, str]:
        note = checkpoint.cascaded.get(label)
        if note is None or note["last"] != last:
            return checkpoint, f"{label} is to be repaired again: foreign keys have changed it\n"
        if any(each.label == label and each.is_whole for each in checkpoint.left_out):
            return checkpoint, f"{label} is skipped: it is to be repaired once it is followed\n"
        others = {name: each for name, each in checkpoint.cascaded.items() if name != label}
        return replace(checkpoint, cascaded=others), f"{label} is repaired up to {last}\n"

    return edit


def history_accepted(name: str, label: str) -> Edit:
    def edit(checkpoint: Checkpoint) -> tuple[Checkpoint, str]:
        return replace(checkpoint, accepts=name), (
            f"the source continues with {label}: what it had not read of the history before is"
            " missing downstream, and what the server lost is still there; penstock source"
            " reload, or"
            " penstock verify --repair, makes the tables equal\n"
        )

    return edit


def revoked(what: str, *, accepts_gap: bool = False) -> Edit:
    """Return the edit that revokes the override of a place, or of a table.

    With `accepts_gap` also of a table of which something was skipped, which stays missing.
    """

    def edit(checkpoint: Checkpoint) -> tuple[Checkpoint, str]:
        if what in checkpoint.rulings:
            return _without_decision(checkpoint, what)
        name = table_name(what)
        found = _of(checkpoint, name)
        if not found.is_whole:
            raise NeedsOperator(
                f"there is no override for {what}",
                "penstock source status lists them",
                Code.OVERRIDE_INVALID,
            )
        if found.reload:
            raise NeedsOperator(
                f"{found.label} is being loaded again: it is not whole downstream",
                "wait for it: the table is followed again once the reload is done",
                Code.NOT_CONFIRMED,
            )
        if found.is_partial:
            raise NeedsOperator(
                f"a reload of {found.label} was ended: an unknown part of it is downstream",
                f"penstock source reload {found.label}: once that is done it is followed again",
                Code.NOT_CONFIRMED,
            )
        if not (found.is_complete or accepts_gap):
            raise NeedsOperator(
                f"{found.rows} rows, {found.events} events and {found.statements} statements of"
                f" {found.label} were skipped",
                "with --accept-gap it is followed again and they stay missing downstream until"
                " penstock verify --repair",
                Code.NOT_CONFIRMED,
            )
        return _with(checkpoint, replace(found, is_whole=False)), (
            f"{found.label} is followed again from {checkpoint.done} on\n"
        )

    return edit


def _without_decision(checkpoint: Checkpoint, place: str) -> tuple[Checkpoint, str]:
    if is_passed(checkpoint, place):
        raise NeedsOperator(
            f"the source is past {place}, so the override of it is done",
            "penstock source status says how much was skipped",
            Code.OVERRIDE_INVALID,
        )
    left = {at: each for at, each in checkpoint.rulings.items() if at != place}
    return replace(checkpoint, rulings=left), f"{place} is not overridden any more\n"


def forget_overrides(rulings: Mapping[str, object], begin: Location) -> dict[str, Any]:
    """Return no overrides, and log the overrides that are lost where another history starts.

    A place is a file and a position, which denote another event in another history.
    """
    if rulings:
        log.warning(
            "another history of the server begins at %s: the overrides of %s were of the one before"
            " and are removed",
            begin, ", ".join(rulings),
        )  # fmt: skip
    return {}


def is_passed(checkpoint: Checkpoint, place: str) -> bool:
    file, _, position = place.rpartition(":")
    done = checkpoint.place
    try:
        return (FileName.parse(file), int(position)) <= (done.file, done.position)
    except (Malformed, ValueError):
        return False


def table_name(text: str) -> Name:
    return split_name(text, None)


def choices(
    error: Refused, overridden: Collection[str] = (), *, flags: str = ""
) -> tuple[str, ...]:
    """Return the commands with which an operator may continue, each with its effect, safest first.

    `overridden` are the places with an override: an override that does not help can be revoked.
    `flags` complete each command: they name the source.
    """
    flags = flags and f" {flags}"
    place = place_text(error.place) if error.place is not None else ""
    label = ", ".join(".".join(name) for name in error.tables)
    found = []
    if place in overridden:
        found.append(f"penstock source revoke {place}{flags}: revoke the override of this place")
    if error.is_statement:
        found += [
            f"penstock source replace --at {place} 'SQL'{flags}: run other statements instead;"
            " they must have the same effect on the table",
            f"penstock source inject --at {place} 'SQL'{flags}: run other statements first",
        ]
    found += [
        f"penstock source reload {'.'.join(name)}{flags}: load this table again from the"
        " server; nothing is lost, and all other tables continue; until it is done, readers"
        " downstream see the table missing or incomplete"
        for name in error.tables
    ]
    found += [
        f"penstock source skip-table {'.'.join(name)}{flags}: skip this table from here on, counted"
        " in status and metrics; all other tables continue, downstream it stays as it is now"
        for name in error.tables
    ]
    if place and error.is_statement:
        found.append(
            f"penstock source skip --at {place}{flags}: skip this statement; downstream the table"
            " stays as it is, and rows that do not fit it stop the source again"
        )
    elif place:
        found.append(
            f"penstock source skip --at {place}{flags}: skip the rows of this event"
            f"{' of ' + label if label else ''}, counted; downstream they are missing until"
            " penstock verify --repair"
        )
    return tuple(found)


def _of(checkpoint: Checkpoint, name: Name) -> SkippedTable:
    known = {each.name: each for each in checkpoint.left_out}
    schema, table = name
    return known.get(name) or SkippedTable(schema=schema, table=table, since=checkpoint.done)


def _without_reload(checkpoint: Checkpoint, number: int) -> Checkpoint:
    tables = (
        replace(each, reload=0, is_partial=True) if each.reload == number else each
        for each in checkpoint.left_out
    )
    return replace(checkpoint, left_out=tuple(tables))


def _with(checkpoint: Checkpoint, table: SkippedTable) -> Checkpoint:
    others = [each for each in checkpoint.left_out if each.name != table.name]
    is_kept = table.is_whole or not table.is_complete
    return replace(checkpoint, left_out=(*others, *[table] * is_kept))

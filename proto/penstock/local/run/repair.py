"""Repairs: `penstock verify --repair` for the tables that foreign keys may have changed.

A source with `cascades = "repair"` notes these tables. A pass begins 5 s after the last note, at
the latest a minute after the first, and never before the pause since the last pass was as long as
that pass. If a pass leaves a note although nothing was added, the next pause is twice as long, up
to 15 minutes. A downstream that `verify` does not repair gets its rows by a reload, which needs an
operator's decision, since the table is missing for a while: then the lines name the command.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from drainer.settings.targets import MysqlTarget, SqliteTarget, target_of
from penstock.local.process import open_local, python_module
from penstock.local.run.parts import SOURCE, Choice, Part
from pumpclient.mysql.verify.verifier import NOT_THERE

_QUIET_S, _LATEST_S = 5.0, 60.0
_PAUSE_S_MIN, _PAUSE_S_MAX = 5.0, 900.0
_POLL_S, _ANSWER_S = 1.0, 2.0
_TRIES_AT_ONCE = 5
_WAIT_S = "15"
Notes = Mapping[str, str]
"""The last place of each table to repair."""


@dataclass(slots=True)
class RepairPace:
    """Tells when a pass is due; all times are of the caller's clock."""

    _notes: Notes = field(default_factory=dict)
    _first_s: float = 0.0
    _changed_s: float = 0.0
    _not_before_s: float = 0.0
    _pause_s: float = _PAUSE_S_MIN

    def is_due(self, notes: Notes, now_s: float) -> bool:
        if notes != self._notes:
            if not self._notes:
                self._first_s = now_s
            if not notes.items() <= self._notes.items():  # Something was noted.
                self._changed_s, self._pause_s = now_s, _PAUSE_S_MIN
            self._notes = dict(notes)
        is_quiet = now_s - self._changed_s >= _QUIET_S or now_s - self._first_s >= _LATEST_S
        return bool(notes) and is_quiet and now_s >= self._not_before_s

    def ended(self, began_s: float, now_s: float, *, is_whole: bool) -> None:
        """Note the end of a pass; it `is_whole` if it left none of its notes."""
        self._pause_s = _PAUSE_S_MIN if is_whole else min(2 * self._pause_s, _PAUSE_S_MAX)
        self._first_s = now_s
        self._not_before_s = now_s + max(self._pause_s, now_s - began_s)


def comparison(
    choice: Choice, target: MysqlTarget | SqliteTarget, *more: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command of `penstock verify` for both sides, and its environment."""
    upstream = choice.upstream
    assert upstream is not None, "programs have no upstream to compare with"
    downstream = f"sqlite:///{target.file}" if isinstance(target, SqliteTarget) else ""
    passwords = {"PENSTOCK_UPSTREAM_PASSWORD": upstream.password}
    if isinstance(target, MysqlTarget):
        downstream = f"mysql://{quote(target.user)}@{target.host}:{target.port}/"
        passwords["PENSTOCK_DOWNSTREAM_PASSWORD"] = target.current_password()
    arguments = [
        "--upstream", f"mysql://{quote(upstream.user)}@{upstream.host}:{upstream.port}/",
        "--downstream", downstream, "--source-config", str(choice.folder / "conf/source.toml"),
        *more,
    ]  # fmt: skip
    given = {name: text for name, text in passwords.items() if text}
    return python_module("pumpclient.mysql.verify", *arguments), {**os.environ, **given}


class Repairs:
    """The repairs of one pipeline; `text` is for the line about its state."""

    def __init__(
        self, choice: Choice, parts: Mapping[str, Part], say: Callable[[str], None]
    ) -> None:
        """`say` prints a line."""
        self.text = ""
        self._choice, self._say = choice, say
        self._target = target_of(choice.downstream)
        self._pages = parts[SOURCE].pages if SOURCE in parts else ""
        self._pace = RepairPace()
        self._said: dict[str, str] = {}

    async def keep(self) -> None:
        """Repair whenever a pass is due, until cancelled."""
        while self._pages:
            notes = await asyncio.to_thread(self._notes)
            if notes is not None:
                self._said = {each: why for each, why in self._said.items() if each in notes}
                self.text = f"{len(notes)} tables to repair" if notes else ""
                if self._pace.is_due(notes, time.monotonic()):
                    await self._pass(notes)
            await asyncio.sleep(_POLL_S)

    async def settle(self) -> None:
        """Repair at once until nothing is noted, with a bounded number of passes."""
        for _ in range(_TRIES_AT_ONCE):
            notes = await asyncio.to_thread(self._notes) if self._pages else None
            if not notes or not await self._pass(notes):
                return

    def _notes(self) -> Notes | None:
        """Return the notes of tables that are not skipped; None while the source is away."""
        try:
            with open_local(f"{self._pages}status", timeout_s=_ANSWER_S) as answer:
                found = json.load(answer)
        except (OSError, ValueError):
            return None
        skipped = {table for table, each in found["left_out"].items() if each["is_whole"]}
        noted = found.get("cascaded", {})
        return {table: each["last"] for table, each in noted.items() if table not in skipped}

    async def _pass(self, notes: Notes) -> bool:
        """Run one pass; return whether it ended or left notes in an answer that is readable."""
        if not isinstance(self._target, MysqlTarget):
            self._tell(dict.fromkeys(notes, "this downstream is not compared"))
            self._pace.ended(time.monotonic(), time.monotonic(), is_whole=False)
            return False
        began_s = time.monotonic()
        self.text = f"repairing {', '.join(sorted(notes)[:3])}{' …' if len(notes) > 3 else ''}"
        found = await self._verified(self._target)
        self._pace.ended(began_s, time.monotonic(), is_whole=bool(found) and not found["open"])
        if found and found["ended"]:
            tables = ", ".join(found["ended"])
            self._say(f"foreign keys changed {tables}: {found['repaired']} rows repaired")
        self._tell(found.get("open", {}))
        self.text = ""
        return bool(found)

    def _tell(self, left: Mapping[str, str]) -> None:
        config = shlex.quote(str(self._choice.folder / "conf/source.toml"))
        for table, why in left.items():
            if self._said.get(table) != why:
                self._said[table] = why
                then = f"; penstock source reload {table} --config {config} loads it again"
                self._say(
                    f"foreign keys may have changed {table}, not repaired: {why}"
                    f"{'' if why == NOT_THERE else then}"
                )

    async def _verified(self, target: MysqlTarget) -> dict[str, Any]:
        """Return the report of `penstock verify`; empty if it failed: the log tells why."""
        address = self._pages.removeprefix("http://").rstrip("/")
        command, environment = comparison(
            self._choice, target, "--repair", "--yes", "--output", "json",
            "--source-status", address, "--wait-s", _WAIT_S, "--rows-per-chunk", "10000",
        )  # fmt: skip
        with (self._choice.folder / "log/repair.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, env=environment, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                answer, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.terminate()
        with suppress(ValueError):
            return dict(json.loads(answer))
        return {}

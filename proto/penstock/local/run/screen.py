"""Screen: what `penstock run` says about its parts while it runs.

    on a terminal   permanent lines, and below them a few lines that are drawn again each second:
                    the parts that are waited for, a bar for each table in work and one for the
                    whole load, then rate, lag and the console's address
    elsewhere       the same in one line: every 5 s while parts start or stop, then every 10 s

The texts are made of the parts' status pages by functions without I/O.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.local.run.parts import CONSOLE, DRAINER, ETCD, PUMP, SOURCE
from penstock.local.run.supervisor import ENDED, RUNNING, STOPPED, Running

EVERY_S = 1.0
_STAGE_EVERY_S, _STEADY_EVERY_S = 5.0, 10.0
_BAR = 24
_LAG_S_MAX = 1e9
_TABLES_SHOWN = 8
_STARTS = {
    ETCD: "it starts",
    PUMP: "it registers in etcd",
    DRAINER: "Spark starts, which takes about 15 s",
    SOURCE: "it connects to the upstream",
    CONSOLE: "it starts",
}
Pages = Mapping[str, Mapping[str, Any]]
"""The status pages of parts, empty while they do not answer."""


class Screen:
    """Lines about the parts, and lines that change; `run.json` for `penstock run status`."""

    def __init__(self, file: Path, upstream: str, downstream: str) -> None:
        self._file = file
        self._head = {"pid": os.getpid(), "from": upstream, "to": downstream}
        self.is_live = sys.stdout.isatty()
        self._parts: dict[str, dict[str, Any]] = {}
        self._drawn = 0
        self._shown_s = time.monotonic()
        self._began = datetime.now(UTC).isoformat(timespec="seconds")
        self._is_loaded = self._was_in_stage = False
        self.is_paused = False
        """True while another program writes to the terminal."""

    def changed(self, running: Running) -> None:
        part = running.part
        self._parts[part.name] = {
            "state": running.state,
            "pid": running.pid,
            "starts": running.starts,
            "problem": running.problem,
            "address": part.address,
            "pages": part.pages,
            "log": str(part.log),
        }
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps({**self._head, "parts": self._parts}, indent=2))
        written.replace(self._file)
        if running.state == RUNNING:
            self.line(f"{part.name} runs{f' at {part.address}' if part.address else ''}")
        elif running.state == ENDED:
            self.line(f"{part.name} ended and is started again: {running.problem}")
        elif running.state == STOPPED and running.starts:
            self.line(f"{part.name} stopped")

    def line(self, text: str) -> None:
        """Write a line that stays."""
        self._shown_s = time.monotonic()
        sys.stdout.write(f"{self._erased()}{text}\n")
        sys.stdout.flush()

    def is_due(self, *, in_stage: bool) -> bool:
        """Return whether to show the changing lines again; `in_stage`: parts are awaited."""
        if self._was_in_stage and not in_stage and not self.is_paused:
            self._was_in_stage = False
            return True
        self._was_in_stage |= in_stage
        elsewhere_s = _STAGE_EVERY_S if in_stage else _STEADY_EVERY_S
        is_late = time.monotonic() - self._shown_s >= elsewhere_s
        return not self.is_paused and (self.is_live or is_late)

    def show(self, lines: Sequence[str]) -> None:
        """Replace the changing lines; without a terminal, write them as one line."""
        if not self.is_live:
            return self.line("; ".join(lines))
        width = shutil.get_terminal_size().columns - 1
        sys.stdout.write(self._erased() + "\n".join(line[:width] for line in lines))
        sys.stdout.flush()
        self._drawn = len(lines)

    def end(self) -> None:
        """Remove the changing lines."""
        sys.stdout.write(self._erased())
        sys.stdout.flush()

    def report(self, source: Mapping[str, Any]) -> None:
        """Write one line about a load of this run once it is done."""
        loaded = source.get("loaded") or {}
        if not self._is_loaded and loaded.get("is_complete") and source.get("state") != "loading":
            self._is_loaded = True
            if loaded["ended"].replace("Z", "+00:00") >= self._began:
                rows = loaded["rows"]
                self.line(f"loaded {len(rows)} tables with {sum(rows.values()):,} rows")

    def _erased(self) -> str:
        drawn, self._drawn = self._drawn, 0
        up = f"\x1b[{drawn - 1}A" if drawn > 1 else ""
        return f"\r{up}\x1b[J" if self.is_live else ""


def awaited(parts: Mapping[str, Running], waits_s: float, *, is_stopping: bool) -> list[str]:
    """Return a line for the part that is waited for, none when all run."""
    if is_stopping:
        left = [name for name, each in parts.items() if each.state != STOPPED]
        return [f"stopping: waits for {left[-1]} ({waits_s:.0f} s)"] if left else []
    names = [name for name, each in parts.items() if not each.is_ready.is_set()]
    return [f"waits for {name}: {_STARTS[name]} ({waits_s:.0f} s)" for name in names[:1]]


def loading(load: Mapping[str, Any]) -> list[str]:
    """Return a bar for each table in work, and one for the whole load."""
    lines = [
        f"{_bar(each['rows_done'], each['rows'])} {each['table']},"
        f" {each['rows_done']:,} of about {each['rows']:,} rows"
        for each in load["running"][:_TABLES_SHOWN]
    ]
    left_s = load["seconds_left"]
    left = "time left unknown" if left_s is None else f"about {left_s:.0f} s left"
    return [
        *lines,
        f"{_bar(load['rows_done'], load['rows'])} loading: {load['tables_done']} of"
        f" {load['tables']} tables, {load['rows_done']:,} of about {load['rows']:,} rows, {left}",
    ]


def _bar(done: int, whole: int) -> str:
    share = min(done / whole, 1.0) if whole else 0.0
    full = int(share * _BAR)
    return f"[{'#' * full}{'.' * (_BAR - full)}] {100 * share:3.0f} %"


def following(parts: Mapping[str, Running], pages: Pages) -> list[str]:
    """Return a line with rate, lag and problems, and one with the console's address."""
    texts = []
    source = pages.get(SOURCE, {})
    if source.get("problem"):
        texts.append(f"source {source['state']}: {source['problem']} ({source['hint']})")
    elif source.get("state") == "syncing":
        texts.append(
            f"syncing, {source['transactions_per_s']:,} transactions/s,"
            f" {source['seconds_behind']:.1f} s behind the upstream"
        )
    elif source and not source["load"]:
        texts.append(str(source["state"]))
    own = pages.get(DRAINER, {}).get("self", {})
    if own.get("lag_s", _LAG_S_MAX) < _LAG_S_MAX:  # Before the first checkpoint it is since 1970.
        texts.append(f"downstream {own['lag_s']:.1f} s behind")
    waits = own.get("progress_ddl_waits_for"), own.get("progress_downstream_waits_for")
    texts += [each for each in waits if each and each != "nothing"]
    problems = (each for each in parts.values() if each.state == ENDED)
    texts += [f"{each.part.name}: {each.problem}" for each in problems]
    console = [f"console {parts[CONSOLE].part.pages}"] if CONSOLE in parts else []
    return [*filter(None, ("; ".join(texts),)), *console]

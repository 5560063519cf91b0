"""Children: commands that the console runs as processes for a user who has logged in.

    a decision     penstock drainer ddl skip 47…, penstock source reload shop.orders, …
    last changes   penstock tail --table=shop.orders --after=… --until=now -o json

A console needs neither Arrow nor a database's driver, and cannot know a downstream: these commands
can. A decision is the command that the node itself recorded with its reason, so that the page does
the same as an operator by hand. Only commands of these forms are run, and none of them by a shell.
Their time and their output are limited.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shlex
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from penstock.codes import Code
from penstock.ctl.console.views import Choice
from penstock.errors import NeedsOperator, Retryable
from penstock.ts import compose

DECISION_S_MAX: Final = 120.0
CHANGES_S_MAX: Final = 30.0
CHANGES_MAX: Final = 50
SPANS_S: Final[Mapping[str, float]] = {
    "1 minute": 60.0, "10 minutes": 600.0, "1 hour": 3600.0, "1 day": 86_400.0,
}  # fmt: skip
_VALUE_CHARS: Final = 80
_LINE_BYTES_MAX: Final = 1 << 20
_SAID_CHARS_MAX: Final = 4000
_RUN_AT_ONCE: Final = 2
_VERBS: Final = (
    (("penstock", "drainer", "ddl"), ("track", "replace", "skip")),
    (("penstock", "source"), ("resume", "skip", "replace", "inject", "skip-table", "reload",
                              "revoke", "continue")),
)  # fmt: skip
_FLAG: Final = re.compile(r"--[a-z][a-z-]*(?:=.*)?", re.DOTALL)
_SQL: Final = ("<sql>", "SQL")


class Decision(NamedTuple):
    """A choice that the console can carry out; `wants_sql` if a statement is to be given."""

    verb: str
    choice: Choice
    words: Sequence[str]
    wants_sql: bool

    def argv(self, sql: str) -> list[str]:
        """Return the command with the statement; raise `NeedsOperator` without a wanted one."""
        if self.wants_sql and not sql.strip():
            raise NeedsOperator(
                f"{self.verb} needs a statement", "write it into the field", Code.COMMAND_INVALID
            )
        return [sql.strip() if each in _SQL else each for each in self.words]


def decision_of(choice: Choice) -> Decision | None:
    """Return the decision of a choice; None if it is done by hand or has an unknown form."""
    try:
        words = shlex.split(choice.command)
    except ValueError:
        return None
    for begin, verbs in _VERBS:
        rest = words[len(begin) :]
        if tuple(words[: len(begin)]) == begin and rest and rest[0] in verbs:
            flags = [each for each in rest if each.startswith("-")]
            if all(map(_FLAG.fullmatch, flags)):
                return Decision(rest[0], choice, words, any(each in _SQL for each in rest))
    return None


class Children:
    """The processes of one console, at most two at a time."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_RUN_AT_ONCE)

    async def decide(self, decision: Decision, sql: str) -> str:
        """Carry out a decision; return what the command says, raise `NeedsOperator` if it fails."""
        lines: deque[bytes] = deque(maxlen=100)
        problem = await self._run(decision.argv(sql)[1:], lines, DECISION_S_MAX)
        if problem:
            raise NeedsOperator(
                problem, "run the command on the node's machine, or decide otherwise",
                Code.CHILD_FAILED,
            )  # fmt: skip
        return b"\n".join(lines).decode("utf-8", "replace")[:_SAID_CHARS_MAX]

    async def changes(
        self, table: str, span_s: float, now_s: float, arguments: argparse.Namespace
    ) -> tuple[list[dict[str, Any]], str]:
        """Return the last changes of a table, the newest first, and why there may be more."""
        after_ts = compose(int((now_s - span_s) * 1000), 0)
        words = ["tail", f"--table={table}", f"--after={after_ts}", "--until=now", "--output=json",
                 f"--cut={_VALUE_CHARS}", f"--etcd-urls={arguments.etcd_urls}"]  # fmt: skip
        for name in ("ssl_ca", "ssl_cert", "ssl_key"):
            if getattr(arguments, name, None):
                words.append(f"--{name.replace('_', '-')}={getattr(arguments, name)}")
        lines: deque[bytes] = deque(maxlen=CHANGES_MAX)
        problem = await self._run(words, lines, CHANGES_S_MAX)
        found = []
        for line in reversed(lines):
            with suppress(ValueError):
                each = json.loads(line)
                found += [each] if isinstance(each, dict) else []
        return found, problem

    async def _run(self, words: Sequence[str], lines: deque[bytes], within_s: float) -> str:
        """Run a command, and keep its last lines; return its problem, empty for none.

        Raises `Retryable` if too many run already.
        """
        if self._slots.locked():
            raise Retryable("others are reading just now; try again in a moment", Code.NODE_STATE)
        async with self._slots:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "penstock", *words, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                limit=_LINE_BYTES_MAX, start_new_session=True,
            )  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            said: deque[bytes] = deque(maxlen=3)
            try:
                async with asyncio.timeout(within_s):
                    await asyncio.gather(_keep(process.stdout, lines), _keep(process.stderr, said))
                    code = await process.wait()
            except TimeoutError:
                return f"it was ended after {within_s:.0f} s"
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        return b" ".join(said).decode("utf-8", "replace")[:_SAID_CHARS_MAX] if code else ""


async def _keep(stream: asyncio.StreamReader, lines: deque[bytes]) -> None:
    """Keep the last lines of a stream; one that is too long is left out."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            continue
        if not line:
            return
        lines.append(line.rstrip(b"\n"))

"""Third party: a sink that another package provides, and the Drainer's side of it.

    [project.entry-points."penstock.sinks"]
    myscheme = "my_package:MySink"

`MySink(address)` returns a `TransactionSink`, for URLs as `myscheme://host/path?option=value`.

**Once.** Each write carries a savepoint, a text that the sink stores together with the data, all or
nothing. Before each write the Drainer reads the stored savepoint. It shows whether an earlier try,
whose answer was lost, has happened, and whether another Drainer writes to the same downstream.
`PluginSink` does this, and retries; after an error it closes the sink and makes another.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from drainer.settings import plugins
from drainer.settings.targets import PluginTarget
from drainer.sinks.checkpoint import Checkpoint, OverrideChange, of_another_cluster, overridden
from drainer.sinks.committed import Changes, Ddl, RowForm, Transaction, concerned
from drainer.sinks.patience import PASSING_ERRNOS, RetryingSink
from drainer.sinks.protocol import (
    EventSink,
    ddl_run,
    rows_changed,
    transaction_begun,
    transaction_committed,
)
from drainer.task.events.event_unit import ROWS, Encoding, EventUnit
from drainer.task.events.messages import Messages, PerTable
from drainer.task.row_changes import TableChanges
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable

if TYPE_CHECKING:
    from drainer.sinks.protocol import Slices
    from penstock.ddl import SchemaChange


@dataclass(frozen=True, kw_only=True)
class Address:
    """The parsed URL of a sink, with everything percent-decoded, and the cluster it is for."""

    scheme: str
    place: str = ""
    """Host and port as they are written, without the account."""
    path: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    """The password in the URL, or in the file that the option `password-file` names."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The options of the URL, except `password-file`."""
    cluster_id: int = 0
    """0 if the URL is only checked: no method of the sink is called then, except `close`."""


class Moved(Exception):
    """The stored savepoint is not the one that a write was to follow: nothing was written."""


class TransactionSink:
    """A downstream of another package, for derivation; one thread calls it.

    `ConnectionError`, `TimeoutError`, and the `OSError` of a full disk or a lock are outages: the
    Drainer closes the sink, calls the factory again after a pause, and repeats the call. Any other
    exception stops the Drainer, with the name of the package.
    """

    interval_s: float = 0.0
    """How long changes gather before they are written; 0: as soon as possible."""

    def load(self) -> str | None:
        """Return the savepoint that the downstream stores, None if it has none."""
        raise NotImplementedError

    def write(
        self, changes: Sequence[Transaction | Ddl], savepoint: str, after: str | None
    ) -> None:
        """Write all changes in their order and store `savepoint`: all or nothing, durably.

        `changes` may be empty, and may be iterated several times. `after` is the savepoint that
        `load` has returned. Compare it with the stored savepoint in the same step, and raise
        `Moved` if they differ: another Drainer has written.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release the downstream."""


_CLUSTER = "cluster"
_GATHERED_BYTES, _GATHERED_ROWS = 64 << 20, 1 << 20


class PluginSink(RetryingSink, EventSink):
    """See `EventSink`; it hands rows to a `TransactionSink`, which decodes them as it reads."""

    encoding = Encoding(ROWS)

    def __init__(self, target: PluginTarget, *, cluster_id: int, retry_s_max: float) -> None:
        """Make a sink to report an invalid URL; raise `NeedsOperator` if that fails."""
        super().__init__(target.label, cluster_id=cluster_id, retry_s_max=retry_s_max)
        self._target = target
        self._factory, self._package = plugins.load(target.scheme)
        self._forms = PerTable(RowForm)
        self._sink: TransactionSink | None = self._made()
        self.gathers_s = self._sink.interval_s
        self.gathered_bytes_max, self.gathered_rows_max = _GATHERED_BYTES, _GATHERED_ROWS

    # --- the protocol ----------------------------------------------------------------------

    def load_checkpoint(self) -> Checkpoint | None:
        return self._ledger.loaded(self._patience.retrying(lambda _: self._stored()))

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._commit([], checkpoint)

    def change_overrides(self, change: OverrideChange) -> None:
        def attempt(_: bool) -> None:
            stored = self._stored()
            self._write([], overridden(stored, change), stored)

        self._patience.retrying(attempt)

    def put(self, messages: Sequence[Messages], checkpoint: Checkpoint) -> None:
        made = []
        for each in messages:
            for ts, found in _transactions(each):
                changes = Changes(partial(iter, (found,)), self._forms)
                made.append(self._transaction(ts, each, changes, found))
        self._commit(made, checkpoint)

    def put_slices(self, slices: Slices[Messages], checkpoint: Checkpoint) -> None:
        def parts() -> Iterator[list[TableChanges]]:
            with closing(slices()) as found:
                for each in found:
                    yield from (changes for _, changes in _transactions(each))

        with closing(slices()) as found:
            first = next((each for each in found if len(each)), None)
        made = []
        if first is not None:
            changes = Changes(parts, self._forms, is_large=True)
            made.append(self._transaction(checkpoint.commit_ts, first, changes, ()))
        self._commit(made, checkpoint)

    def run_ddl(self, change: SchemaChange, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        """Write a DDL and store `checkpoint`; `maybe_done` changes nothing, as both are one."""
        ddl = Ddl(
            commit_ts=checkpoint.commit_ts,
            start_ts=checkpoint.commit_ts,
            origin=None,
            tables=concerned(change),
            schema=change.job.schema_name,
            query=change.job.query,
            change=change,
        )
        self._commit([ddl], checkpoint, ddl_run)

    # --- details ---------------------------------------------------------------------------

    def _transaction(
        self, ts: int, messages: Messages, changes: Changes, parts: Iterable[TableChanges]
    ) -> Transaction:
        start = messages.starts.get(ts)
        names = (f"{each.target[0]}.{each.target[1].name}" for each in parts)
        return Transaction(
            commit_ts=ts,
            start_ts=ts if start is None or start.start_ts is None else start.start_ts,
            origin=None if start is None else start.origin,
            tables=tuple(dict.fromkeys(names)),
            changes=changes,
        )

    def _commit(
        self,
        changes: Sequence[Transaction | Ddl],
        checkpoint: Checkpoint,
        written: Callable[[], object] = rows_changed,
    ) -> None:
        def attempt(text: str, retried: bool) -> None:
            stored = self._stored()
            if self._ledger.is_written(stored, text, retried=retried):
                return
            transaction_begun()
            self._write(changes, text, stored)
            written()
            transaction_committed()

        self._storing(attempt, checkpoint)
        if changes:
            self.file_counts.commits += 1
            self.file_counts.last_commit_s = time.time()

    def _write(self, changes: Sequence[Transaction | Ddl], text: str, after: str | None) -> None:
        before = None if after is None else self._with_cluster(after)
        self._opened().write(changes, self._with_cluster(text), before)

    def _with_cluster(self, text: str) -> str:
        return json.dumps(json.loads(text) | {_CLUSTER: self._cluster_id})

    def _stored(self) -> str | None:
        """Return the checkpoint in the savepoint; `NeedsOperator` if it is another cluster's."""
        found = self._opened().load()
        if found is None:
            return None
        try:
            stored = json.loads(found)
            cluster_id = stored.pop(_CLUSTER)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise NeedsOperator(
                f"the savepoint that {self._target.label} has is damaged: {found!r}",
                "put it back as it was; or use another place",
                Code.CHECKPOINT_DAMAGED,
            ) from error
        if cluster_id != self._cluster_id:
            raise of_another_cluster(self._cluster_id, [cluster_id], "place")
        return json.dumps(stored)

    def _opened(self) -> TransactionSink:
        if self._sink is None:
            self._sink = self._made()
        return self._sink

    def _made(self) -> TransactionSink:
        target = self._target
        address = Address(
            scheme=target.scheme,
            place=target.place,
            path=unquote(target.path),
            user=target.user,
            password=target.current_password(),
            options=dict(target.options),
            cluster_id=self._cluster_id,
        )
        try:
            made = self._factory(address)
        except (PenstockError, OSError):
            raise
        except Exception as error:
            raise self._failed(error, Code.URL_INVALID) from error
        if not isinstance(made, TransactionSink):
            kind = TypeError(f"its factory returns {type(made).__name__}, not a TransactionSink")
            raise self._failed(kind, Code.URL_INVALID)
        return made

    def _let_go(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            with suppress(Exception):  # It has failed, and its resources with it.
                sink.close()

    def _passing(self, error: Exception) -> str:
        if isinstance(error, Moved):
            return "its savepoint has moved"
        if isinstance(error, Retryable):
            return str(error)
        if isinstance(error, PenstockError):
            raise error
        is_away = isinstance(error, ConnectionError | TimeoutError)
        if not is_away and not (isinstance(error, OSError) and error.errno in PASSING_ERRNOS):
            raise self._failed(error, Code.SINK_REFUSES) from error
        return str(error) or type(error).__name__

    def _failed(self, error: Exception, code: Code) -> NeedsOperator:
        return NeedsOperator(
            f"the sink for {self._target.scheme}:// of the package {self._package} fails:"
            f" {type(error).__name__}: {error}",
            "see the documentation of that package; nothing is lost: a start continues at the"
            " savepoint",
            code,
        )


def _transactions(messages: Messages) -> Iterator[tuple[int, list[TableChanges]]]:
    for _, message in messages:
        assert message.value is not None, "a unit is a value"
        yield from transactions_of(EventUnit.decode(message.value))


def transactions_of(unit: EventUnit) -> Iterator[tuple[int, list[TableChanges]]]:
    """Yield the commit_ts and the changes, table by table, of each transaction with rows."""
    numbers, tables = (unit.rows.column(n).to_numpy() for n in ("transaction", "table"))
    order = np.lexsort((tables, numbers))  # Stable: rows of a table keep their order.
    rows = unit.rows.take(pa.array(order))
    numbers, tables = numbers[order], tables[order]
    kinds, values = rows.column("kind").to_numpy().tobytes(), rows.column("row")
    cuts = np.flatnonzero((np.diff(numbers) != 0) | (np.diff(tables) != 0)) + 1
    parts = pairwise([0, *cuts.tolist(), len(order)]) if len(order) else ()
    for number, group in groupby(parts, lambda part: int(numbers[part[0]])):
        yield (
            unit.commit_ts[number],
            [
                TableChanges(0, unit.tables[tables[a]], kinds[a:b], values[a:b].to_pylist())
                for a, b in group
            ],
        )

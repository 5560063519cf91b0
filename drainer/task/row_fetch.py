"""Row fetch: a batch whose rows a task fetches from the Pumps, its unit and its answer.

    unit ── Pumps' addresses, commit_ts in merged order ──> one Fetch per Pump, concurrently
    each transaction is taken from its Pump's stream in the order of the unit ──> `statements_of`,
    or `messages_of` if the unit has an encoding

Every commit_ts of the unit must come exactly once, from the Pump that reported it. An unreachable
Pump is retried for `TRY_S`; then the answer requests that the unit be sent again, with the
addresses of that time.

Fetched rows are processed in the same way as payloads that pass through the Drainer: changes are
read in commit order with the same filters, routes and marks. If a table's version changes within
the batch, the changes before and after are compacted separately and follow one another. The state
between them is a state of the upstream.

The unit (little-endian; its first bytes are not those of an Arrow stream, see `work_unit.py`):

    | part      | bytes | content                                                         |
    |-----------|-------|-----------------------------------------------------------------|
    | magic     | 8     | `PSTFETCH`                                                      |
    | header    | 4 + n | a length, then JSON: all fields of `FetchUnit` but the two below |
    | commit_ts | 8 k   | of each transaction, in the order of the merge                  |
    | owners    | 2 k   | the index of its Pump in the header                             |

The answer is a byte 0 and a text if a Pump could not be reached; else a byte 1, the length of a
JSON and the JSON of `Facts` with the lengths of the encoded `Statements` or `Messages` that follow
it.

**A task that commits** (`connections` above 0) cuts the SQL into partitions. Its answer is a byte 2
and the same, but the only statements are those of the last transaction, and the JSON states the
`content` and the number of partitions of each phase; the digests of all key values that the batch
touches follow the statements. The task keeps the partitions under their content until it has
committed them. It keeps the SQL of at most `kept_max` batches, as many as the Drainer has in
progress, and then drops the oldest.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

import grpc
import numpy as np

from drainer.differences import Counts, from_lists, to_lists
from drainer.schema.snapshot import unpack
from drainer.task.compaction import plan_units
from drainer.task.events.event_unit import Encoding, encoded_messages, event_units
from drainer.task.events.messages import Messages
from drainer.task.held_unit import Made, answer
from drainer.task.partitions import Partitions, arranged
from drainer.task.row_changes import Collector, Targets, ignored_counts, parse_merged, read_changes
from drainer.task.selection import Selection
from drainer.task.sql.digests import Digests, Touched, merged
from drainer.task.sql.generate import generate
from drainer.task.sql.rows import can_meet_others
from drainer.task.work_unit import Batch, Statements, TransactionStart, in_order, reading
from penstock.codes import Code
from penstock.errors import Corrupt, Malformed, NeedsOperator
from penstock.filters import FilterConfig, Rules
from penstock.filters.table_lists import TableFilter
from penstock.pb import penstock_pb2
from penstock.security.tls import Tls, open_channel
from penstock.wire.binlog import MutationType, Origin

MAGIC = b"PSTFETCH"
CATALOGS_KEPT = 8
"""The number of catalogs that a task caches; the Drainer relies on fewer."""

_LENGTH = struct.Struct("<I")
_AWAY, _MADE, _CUT = b"\x00", b"\x01", b"\x02"

HINTS = {
    grpc.StatusCode.OUT_OF_RANGE: "restore the downstream from a newer backup and start after it",
    grpc.StatusCode.DATA_LOSS: "repair or replace the Pump's damaged file",
    grpc.StatusCode.FAILED_PRECONDITION: "check the cluster that this Drainer was pointed at",
    grpc.StatusCode.PERMISSION_DENIED: "check the cluster that this Drainer was pointed at",
    grpc.StatusCode.INVALID_ARGUMENT: "Pump and Drainer must run compatible versions",
}
"""An operator's remedy by error of a Pump that retrying cannot resolve."""


@dataclass(slots=True)
class RemoteTransactions:
    """Transactions in commit order, the place in `pumps` of each, its size, and all their bytes.

    Some of the `pumps` may have none of them. Those that are `ignored` are only counted.
    """

    commit_ts: list[int] = field(default_factory=list)
    owners: array[int] = field(default_factory=partial(array, "H"))
    pumps: list[str] = field(default_factory=list)
    sizes: array[int] = field(default_factory=partial(array, "q"))
    bytes: int = 0
    ignored: list[int] = field(default_factory=list)
    start_ts: array[int] = field(default_factory=partial(array, "q"))
    origins: dict[int, Origin] = field(default_factory=dict)
    """The origins of transactions that have one, by commit_ts."""

    def add(
        self,
        commit_ts: int,
        pump: str,
        size: int,
        *,
        start_ts: int,
        origin: Origin | None = None,
        is_ignored: bool = False,
    ) -> None:
        if is_ignored:
            self.ignored.append(commit_ts)
        if origin is not None:
            self.origins[commit_ts] = origin
        self.know((pump,))
        self.commit_ts.append(commit_ts)
        self.start_ts.append(start_ts)
        self.owners.append(self.pumps.index(pump))
        self.sizes.append(size)
        self.bytes += size

    def know(self, pumps: Iterable[str]) -> None:
        """Give each Pump a place."""
        self.pumps += [pump for pump in pumps if pump not in self.pumps]

    def extend(self, commit_ts: Sequence[int], start_ts: Any, owners: Any, sizes: Any) -> None:
        """Add transactions with `owners`, uint16 places in `pumps`, and their sizes."""
        self.commit_ts += commit_ts
        self.start_ts.frombytes(start_ts.tobytes())
        self.owners.frombytes(owners.tobytes())
        self.sizes.frombytes(sizes.tobytes())
        self.bytes += int(sizes.sum())

    def starts(self) -> dict[int, TransactionStart]:
        """Return the start of each transaction, by its commit_ts."""
        pairs = zip(self.commit_ts, self.start_ts, strict=True)
        return {ts: TransactionStart(start_ts, self.origins.get(ts)) for ts, start_ts in pairs}


Pem = tuple[str | None, str | None, str | None]
"""The paths of CA, certificate and key on the executor's host, as far as needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """A task's fixed settings: the routing of rows, and the access to Pumps.

    `pem` is None without TLS.
    """

    filters: FilterConfig
    lists: Sequence[TableFilter] = ()
    protected: frozenset[str] = frozenset()
    source_id: str = ""
    channel_id: int | None = None
    pem: Pem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchUnit:
    """One batch for one task; `catalog` is the number of the schema with which it is read.

    It becomes SQL of the `dialect`, or messages if it has an `encoding`. If `connections` is above
    0, the task keeps the SQL of `kept_max` batches and commits it on so many connections.
    """

    batch_id: int
    catalog: int
    cluster_id: int
    drainer_id: str
    addresses: Sequence[str]
    commit_ts: Any
    owners: Any
    ignored: Sequence[int] = ()
    dialect: str = ""
    displaces: bool = False
    encoding: Encoding | None = None
    connections: int = 0
    kept_max: int = 0

    def encode(self) -> bytes:
        known = {name: getattr(self, name) for name in _HEADER_FIELDS}
        header = json.dumps(known, default=asdict).encode()
        stamps = np.asarray(self.commit_ts, "<i8").tobytes()
        owners = np.asarray(self.owners, "<u2").tobytes()
        return b"".join([MAGIC, _LENGTH.pack(len(header)), header, stamps, owners])

    @classmethod
    def decode(cls, data: bytes) -> FetchUnit:
        """Return the unit in `data`; raise `Malformed`."""
        with reading("fetch unit"):
            header, at = _json(data, len(MAGIC))
            count, rest = divmod(len(data) - at, 10)
            if rest or not data.startswith(MAGIC):
                raise ValueError(f"{rest} bytes too many")
            stamps = np.frombuffer(data, "<i8", count, at)
            owners = np.frombuffer(data, "<u2", count, at + 8 * count)
            if header["encoding"] is not None:
                header["encoding"] = Encoding(**header["encoding"])
            return cls(**header, commit_ts=stamps, owners=owners)


_HEADER_FIELDS = [f.name for f in fields(FetchUnit) if f.name not in ("commit_ts", "owners")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The Drainer's information about a batch whose rows it never saw."""

    rows: int = 0
    kinds: dict[int, int] = field(default_factory=dict)
    """Changes by their `MutationType`."""
    tables: dict[str, int] = field(default_factory=dict)
    """Changes by their table downstream."""
    skipped: Counts = field(default_factory=Counts)

    def __add__(self, other: Facts) -> Facts:
        return Facts(
            rows=self.rows + other.rows,
            kinds=Counter(self.kinds) + Counter(other.kinds),
            tables=Counter(self.tables) + Counter(other.tables),
            skipped=self.skipped + other.skipped,
        )


class Away(Exception):
    """A Pump could not be reached, or not for long enough: send the unit again."""


def encode_away(problem: str) -> bytes:
    return _AWAY + problem.encode()


def encode_made(made: Made, facts: Facts) -> bytes:
    more = {"meets": [meets for meets, _ in made]}
    return _encoded(_MADE, facts, more, [each.encode() for _, each in made])


def encode_messages(made: Sequence[Messages], facts: Facts) -> bytes:
    return _encoded(_MADE, facts, {}, [each.encode() for each in made])


def _encoded(kind: bytes, facts: Facts, more: dict[str, Any], parts: Sequence[bytes]) -> bytes:
    seen = {"rows": facts.rows, "kinds": facts.kinds, "tables": facts.tables}
    seen["skipped"] = to_lists(facts.skipped)
    header = json.dumps(seen | more | {"parts": list(map(len, parts))}).encode()
    return b"".join([kind, _LENGTH.pack(len(header)), header, *parts])


@dataclass(frozen=True, slots=True)
class Cut:
    """The partitions that a task keeps, and the statements of the last transaction.

    `content` identifies the partitions; a batch of little SQL has none. `touched` are the key
    values that all statements touch.
    """

    content: str
    phases: Sequence[int]
    last: list[bytes]
    touched: Digests

    @property
    def count(self) -> int:
        return sum(self.phases)


def encode_cut(work: Partitions, facts: Facts, touched: Digests) -> bytes:
    phases = [len(phase) for phase in work.phases]
    more = {"content": work.content if work.phases else "", "phases": phases}
    last = Statements(ordered=work.last)
    return _encoded(_CUT, facts, more, [last.encode(), touched.encode()])


def decode_cut(data: bytes) -> tuple[Cut, Facts]:
    """Decode the answer of a task that commits; raise `Away`, or `Malformed`."""
    with reading("answer of a task"):
        header, (last, touched) = _decoded(data)
        statements, digests = Statements.decode(last).ordered, Digests.decode(bytes(touched))
        cut = Cut(header.pop("content"), header.pop("phases"), statements, digests)
        return cut, _facts(header)


def _facts(header: dict[str, Any]) -> Facts:
    header["skipped"] = Counts(from_lists(header["skipped"]))
    header["kinds"] = {int(kind): count for kind, count in header["kinds"].items()}
    return Facts(**header)


def decode_made(data: bytes) -> tuple[Made, Facts]:
    """Decode a task's answer; raise `Away`, or `Malformed` for an invalid answer."""
    with reading("answer of a task"):
        header, parts = _decoded(data)
        made = [(m, Statements.decode(p)) for m, p in zip(header.pop("meets"), parts, strict=True)]
        return made, _facts(header)


def decode_messages(
    data: bytes, starts: Mapping[int, TransactionStart]
) -> tuple[list[Messages], Facts]:
    """Decode as `decode_made` does."""
    with reading("answer of a task"):
        header, parts = _decoded(data)
        return [Messages.decode(bytes(each), starts) for each in parts], _facts(header)


def _decoded(data: bytes) -> tuple[dict[str, Any], list[memoryview]]:
    """Return the header and the parts of an answer; raise `Away`."""
    if data.startswith(_AWAY):
        raise Away(data[1:].decode("utf-8", "replace"))
    header, at = _json(data, 1)
    view, parts = memoryview(data), []
    for length in header.pop("parts"):
        parts.append(view[at : at + length])
        at += length
    if at != len(data):
        raise ValueError(f"it ends at {at} of {len(data)} bytes")
    return header, parts


def _json(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    (length,) = _LENGTH.unpack_from(data, at)
    begin = at + _LENGTH.size
    return json.loads(data[begin : begin + length]), begin + length


def statements_of(
    unit: FetchUnit,
    transactions: Iterable[tuple[int, bytes]],
    selection: Selection,
    touched: list[Digests] | None = None,
) -> tuple[Made, Facts]:
    """Return the SQL of merged binlogs, given with ascending commit_ts, and their facts.

    Adds the digests of the touched key values to `touched`. Raises `Malformed` and the errors of a
    table's look-up.
    """
    targets = Targets(selection.lookup)
    runs: list[Made] = []
    facts = _read(unit, transactions, targets, lambda run: runs.append(_sql(run, unit, touched)))
    if touched and targets.convert:  # Downstream, keys may compare in another way.
        touched[:] = [each.unbounded() for each in touched]
    runs = [run for run in runs if run]
    if len(runs) < 2:
        return (runs[0] if runs else []), facts
    ordered = [each for run in runs for each in in_order(made for _, made in run)]
    return [(True, Statements(ordered=ordered))], facts


def messages_of(
    unit: FetchUnit, transactions: Iterable[tuple[int, bytes]], selection: Selection
) -> tuple[list[Messages], Facts]:
    """Return the messages of merged binlogs in commit order, as `statements_of` does the SQL."""
    made: list[Messages] = []
    encoding, targets = unit.encoding, Targets(selection.lookup)
    assert encoding is not None, "the unit asks for messages"

    def encode(run: Batch) -> None:
        made.extend(encoded_messages(each) for each in event_units(run, encoding, 1))

    facts = _read(unit, transactions, targets, encode)
    return made, facts


def _read(
    unit: FetchUnit,
    transactions: Iterable[tuple[int, bytes]],
    targets: Targets,
    use: Callable[[Batch], None],
) -> Facts:
    """Use the changes of merged binlogs, batch after batch, each with one version of a table."""
    collector, kinds, skipped = Collector(), Counter[int](), Counts()
    by_table = Counter[str]()
    ignored = set(unit.ignored)

    def end() -> None:
        tables = collector.tables()
        skipped.update(collector.skipped)
        for table in tables:
            by_table[table.name] += len(table.rows)
            for kind in MutationType:
                kinds[kind] += table.kinds.count(kind)
        stamps, starts = collector.commit_ts, collector.starts
        use(Batch(unit.batch_id, tables, unit.displaces, commit_ts=stamps, starts=starts))

    for ts, payload in transactions:
        binlog = parse_merged(ts, payload)
        if ts in ignored:
            skipped.update(ignored_counts(binlog.prewrite_value, targets.of))
            continue
        changes = read_changes(binlog.prewrite_value, targets.of)
        if not collector.fits(changes):
            end()
            collector = Collector()
        collector.add(changes, len(payload), ts, TransactionStart(binlog.start_ts))
    end()
    tables = dict(by_table)
    return Facts(rows=kinds.total(), kinds=dict(kinds), tables=tables, skipped=skipped)


def _sql(run: Batch, unit: FetchUnit, touched: list[Digests] | None) -> Made:
    made: Made = []
    for work in plan_units(run, unit.dialect):
        keys = None if touched is None else Touched(work)
        made.append((can_meet_others(work.table), generate(work, touched=keys)))
        if touched is not None and keys is not None:
            touched.append(keys.digests())
    return made


TRY_S = 10.0
_PAUSE_S = 0.3
SILENCE_S_MAX = 20.0
"""A stream that is silent for so long is dead: a Pump answers immediately."""


CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


class Fetcher:
    """A task's cache between its units: channels to Pumps, and the last few schemas."""

    def __init__(self, settings: FetchSettings) -> None:
        """Compile the filters; the first unit connects to the Pumps."""
        self.try_s = TRY_S
        self._settings = settings
        self._rules = Rules(
            settings.filters,
            lists=settings.lists,
            protected=settings.protected,
            source_id=settings.source_id,
        )
        self._tls: Tls | None = None
        if settings.pem is not None:
            ca, cert, key = settings.pem
            self._tls = Tls(ca=ca, cert=cert, key=key)
        self._channels: dict[str, Any] = {}
        self._catalogs: OrderedDict[int, bytes] = OrderedDict()
        self._selections: OrderedDict[int, Selection] = OrderedDict()
        self.kept: OrderedDict[str, Partitions] = OrderedDict()
        """The partitions that are to be committed, by their content."""

    def keep(self, number: int, catalog: bytes) -> None:
        """Store a catalog and drop the oldest; called from the receiving thread."""
        self._catalogs.pop(number, None)
        self._catalogs[number] = catalog
        while len(self._catalogs) > CATALOGS_KEPT:
            self._catalogs.popitem(last=False)

    def answer(self, payload: bytes) -> bytes:
        """Answer a unit of either kind; depends only on the unit and the Pumps' data."""
        if not payload.startswith(MAGIC):
            return answer(payload)
        unit, until_s = FetchUnit.decode(payload), time.monotonic() + self.try_s
        selection = self._selection(unit.catalog)
        while True:
            try:
                return self._made(unit, selection)
            except Away as away:
                if time.monotonic() > until_s:
                    return encode_away(str(away))
                time.sleep(_PAUSE_S)

    def _made(self, unit: FetchUnit, selection: Selection) -> bytes:
        transactions = self.transactions(unit)
        if unit.encoding is not None:
            return encode_messages(*messages_of(unit, transactions, selection))
        if not unit.connections:
            return encode_made(*statements_of(unit, transactions, selection))
        touched: list[Digests] = []
        made, facts = statements_of(unit, transactions, selection, touched)
        work = arranged(made, connections=unit.connections)
        if work.phases:
            self.kept[work.content] = work
            self.kept.move_to_end(work.content)
            while len(self.kept) > unit.kept_max:
                self.kept.popitem(last=False)
        return encode_cut(work, facts, merged(touched))

    def _selection(self, number: int) -> Selection:
        known = self._selections.get(number)
        if known is None:
            try:
                tracker, _ = unpack(self._catalogs[number], "the catalog that was sent")
            except (KeyError, Corrupt) as error:
                raise Malformed(
                    f"this task lacks the catalog {number}: {error}",
                    "Drainer and Spark tasks must run the same version of Penstock",
                    Code.SPARK_VERSION,
                ) from error
            # The Drainer checks rules at its start, not after later DDL; nor does this.
            channel_id = self._settings.channel_id
            known = Selection(self._rules, tracker, channel_id=channel_id, checks=False)
            self._selections[number] = known
            while len(self._selections) > 2:
                self._selections.popitem(last=False)
        return known

    def transactions(self, unit: FetchUnit) -> Iterator[tuple[int, bytes]]:
        """Yield the merged binlogs of a unit; raise `Away`, or `NeedsOperator`."""
        calls: list[Any] = []
        try:
            for owner, address in enumerate(unit.addresses):
                wanted = unit.commit_ts[unit.owners == owner].tolist()
                calls.append(self._call(unit, address, wanted))
            pairs = zip(unit.addresses, calls, strict=True)
            streams = [self._binlogs(address, call) for address, call in pairs]
            for ts, owner in zip(unit.commit_ts.tolist(), unit.owners.tolist(), strict=True):
                found, payload = next(streams[owner], (0, b""))
                if found != ts:
                    raise _disagrees(unit.addresses[owner], ts, found)
                yield ts, payload
            for address, stream in zip(unit.addresses, streams, strict=True):
                for found, _ in stream:
                    raise _disagrees(address, 0, found)
        finally:
            for call in calls:
                call.cancel()

    def _call(self, unit: FetchUnit, address: str, wanted: list[int]) -> Any:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, self._tls, CHANNEL_OPTIONS)
        fetch = channel.unary_stream(
            "/penstock.Pump/Fetch",
            request_serializer=penstock_pb2.FetchRequest.SerializeToString,
            response_deserializer=penstock_pb2.PullBatch.FromString,
        )
        request = penstock_pb2.FetchRequest(
            cluster_id=unit.cluster_id, commit_ts=wanted, drainer_id=unit.drainer_id
        )
        return fetch(request)

    def _binlogs(self, address: str, call: Any) -> Iterator[tuple[int, bytes]]:
        """Yield a Pump's binlogs; raise `Away`, or `NeedsOperator` if a retry cannot help."""
        try:
            while (batch := _next(call)) is not None:
                yield from zip(batch.commit_ts, batch.payloads, strict=True)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            problem = f"the Pump at {address} does not send what it has: {code.name}: {details}"
            if code in HINTS:
                raise NeedsOperator(problem, HINTS[code], Code.PULL_REFUSED) from error
            if code is grpc.StatusCode.UNIMPLEMENTED:
                raise NeedsOperator(
                    problem, "set spark.payloads to driver", Code.PULL_REFUSED
                ) from error
            # The next try uses a new connection: backoff must not delay it.
            if (channel := self._channels.pop(address, None)) is not None:
                channel.close()
            raise Away(problem) from error


def _next(call: Any) -> Any:
    """Return the next message, or None at the end; cancel a call that stays silent."""
    silence = threading.Timer(SILENCE_S_MAX, call.cancel)
    silence.daemon = True
    silence.start()
    try:
        return next(call, None)
    finally:
        silence.cancel()


def _disagrees(address: str, wanted_ts: int, found_ts: int) -> NeedsOperator:
    return NeedsOperator(
        f"the Pump at {address} sent commit_ts {found_ts} where {wanted_ts} was asked for",
        "Pump and Drainer must run compatible versions",
        Code.PULL_MALFORMED,
    )

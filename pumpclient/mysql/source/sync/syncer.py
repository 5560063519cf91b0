"""One run of a source from its checkpoint on: reads, assembles, groups, commits, stores progress.

Everything runs in the caller's thread, except the ends of groups. Any failure ends the run; the
next run starts at the checkpoint, and repeated transactions are recognised downstream by their
origin.

Each origin names its predecessor: the last transaction with rows of this epoch that this run
submitted before, or else the checkpoint's `written`. A Drainer treats a predecessor that never
arrived as a gap (`drainer.planner`). Why a predecessor P always arrives before its
successor T:

* P was submitted before T by one thread, to one `GroupWriter`. The writer takes the commit_ts of a
  group only once all Commits of the group before were acknowledged, and those within a group in
  order. A group that fails ends the writer, and with it everything that was submitted later. So P
  has the smaller commit_ts, and once a Commit of T is sent P is committed, or its Commit was sent.
* `written` is stored with `done`, after all transactions up to there were acknowledged.
* A process that lost the source took the commit_ts of its last group before it lost its lease
  (`may_commit` is asked after that), so before the next process read the checkpoint.
* A skipped transaction (filters, skipped tables, a load's part) is never a predecessor. A run with
  other filters may skip transactions that an earlier run wrote: it then names an earlier place,
  which does not count as a gap.

The one exception is a Pump that rolls P back and accepts T, because P's Commit came after
`txn-timeout-s` (`pumpclient.delivery.group_commit`). Then P is lost, and the gap reports this. A
DDL names a predecessor, but is never a predecessor itself: a missing DDL is detected by the schema
versions.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from zlib import crc32

from penstock import failpoints
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.wire.binlog import Origin
from pumpclient.delivery.group_commit import GroupWriter
from pumpclient.mysql.events.frame import (
    CRC_OF_WHOLE,
    HEADER_SIZE,
    Checksum,
    EventType,
    FormatDescription,
    body_of,
    checksum_holds,
    description_digest,
)
from pumpclient.mysql.events.transactions import listed_gtids
from pumpclient.mysql.gtid import MariadbGtid, MariadbGtidSet, MysqlGtidSet, parse_gtid_set, union
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.relay.reader import Chunk, RelayReader
from pumpclient.mysql.rows.table_map import Name, TableMap
from pumpclient.mysql.source.ddl.execution import place_of
from pumpclient.mysql.source.ddl.table_mapping import Routed
from pumpclient.mysql.source.state.checkpoint import Checkpoint, changed_within_load
from pumpclient.mysql.source.state.overrides import forget_overrides
from pumpclient.mysql.source.state.skipped import SkippedTables, Verdict
from pumpclient.mysql.source.sync.context import SyncContext
from pumpclient.mysql.source.sync.transactions import CatchUp, Gatherer, KnownTransactions
from pumpclient.mysql.translate.assembler import Assembler
from pumpclient.mysql.translate.ddl_pieces import Translation, Verb
from pumpclient.mysql.translate.foreign_keys import CascadedTables
from pumpclient.mysql.translate.outputs import (
    Cascaded,
    Finished,
    Output,
    Refused,
    SequenceRows,
    SkippedRows,
    Statement,
    TableChanges,
    Undone,
    place_text,
)

log = logging.getLogger(__name__)

_TYPE_AT = 4
_LOGGED_BYTES = 500
_CHECKPOINT_INTERVAL_S = 1.0
_DESCRIPTION = int(EventType.FORMAT_DESCRIPTION)
_LISTS = (int(EventType.GTID_LIST), int(EventType.PREVIOUS_GTIDS))
_OF_FILES = (_DESCRIPTION, *_LISTS)
_before_ddl = failpoints.point("source.before_ddl")
_after_ddl = failpoints.point("source.after_ddl")
_before_checkpoint = failpoints.point("source.before_checkpoint")


class Syncer:
    """One run of a source; `run` until `stop`, which may come from any thread."""

    def __init__(
        self,
        context: SyncContext,
        reader: RelayReader,
        checkpoint: Checkpoint,
        group_count_max: int,
        *,
        until: Location | None = None,
    ) -> None:
        """Continue from `checkpoint`, where `reader` must stand, up to the end `until`."""
        self._until = until
        self._context = context
        self._reader = reader
        self._checkpoint = checkpoint
        self._committed = checkpoint  # Guarded by the lock, like `_saved_s`.
        self._lock = threading.Lock()
        self._saved = checkpoint
        self._saved_s = time.monotonic()
        self._stopped = threading.Event()
        self._gtids = parse_gtid_set(checkpoint.gtids, context.flavor)
        self._end = checkpoint.place
        self._written = checkpoint.written_place
        self._restart: Location | None = None  # As of `_end`, once that is beyond the checkpoint.
        self._suffix = self._end.suffix
        self._described = self._end_described = checkpoint.described
        self._checksum = Checksum.NONE
        self._known = self._known_from(checkpoint)
        self._catch_up = CatchUp(context.load, checkpoint)
        self._left_out = SkippedTables(checkpoint.left_out)
        self._cascaded = CascadedTables(checkpoint.cascaded)
        self._are_keys_gone = False
        self._assembler = self._assembler_from(checkpoint.place)
        self._gatherer = Gatherer(group_count_max, context.client.session.options)
        self._writer = GroupWriter(
            context.client.session, context.journal, may_commit=context.store.is_ours
        )

    def stop(self) -> None:
        """Make `run` return at the end of a transaction, with everything before it committed."""
        self._stopped.set()

    def run(self) -> None:
        """Sync until `stop` or the requested end; raise the error that ends this run.

        `Retryable` means that the next run may succeed.
        """
        try:
            for chunk in self._reader.chunks():
                if chunk.events:
                    self._take(chunk)
                elif self._until is None:
                    self._idle()
                else:
                    break  # Another syncer read up to the requested end: nothing is left to read.
                if self._stopped.is_set() or self._context.store.is_lost():
                    break
            self._barrier()
        except NeedsOperator:
            try:  # An override must start exactly here.
                self._barrier()
            except PenstockError as error:
                log.info("what is before the failure comes again: %s", error)
            raise
        finally:
            self._writer.close()
            self._gatherer.close()
        if self._context.store.is_lost():
            raise Retryable("the lease on this source ran out", Code.SOURCE_TAKEN)

    def _take(self, chunk: Chunk) -> None:
        begin = chunk.begin
        if begin.suffix != self._suffix:
            self._switched(begin)
        size = sum(map(len, chunk.events))
        if self._is_plain(chunk) and (
            self._until is None or begin.at(begin.position + size) < self._until
        ):
            for output in self._assembler.take_run(begin, chunk.events):
                self._output(output)
        else:
            end = begin
            for event in chunk.events:
                here, end = end, end.at(end.position + len(event))
                self._event(here, end, event, is_checked=chunk.is_checked)
                if self._until is not None and self._end >= self._until:
                    self._stopped.set()
                    break
        self._context.counters.read(self._reader.location, size)
        self._save_when_due()

    def _is_plain(self, chunk: Chunk) -> bool:
        """Return whether the events are intact and only the assembler must see each of them."""
        if self._known.is_needed or self._catch_up.is_active:
            return False
        types = bytes([event[_TYPE_AT] for event in chunk.events])
        if any(type_ in types for type_ in _OF_FILES):
            return False
        if chunk.is_checked or not self._checksum:
            return True
        return all(crc32(event) == CRC_OF_WHOLE for event in chunk.events)

    def _event(self, begin: Location, end: Location, event: bytes, *, is_checked: bool) -> None:
        type_ = event[_TYPE_AT]
        if type_ == _DESCRIPTION:
            self._checksum = FormatDescription.decode(event[HEADER_SIZE:]).checksum
            if self._checksum and not checksum_holds(event):
                raise self._reader.damaged(begin)
            self._describe(begin, event)
            # No transaction spans files: an open transaction was torn by a crash of the server.
            self._drop_open()
        elif self._checksum and not is_checked and crc32(event) != CRC_OF_WHOLE:
            raise self._reader.damaged(begin)
        elif type_ in _LISTS:
            # All of these were replicated or skipped.
            self._gtids = union(self._gtids, listed_gtids(type_, body_of(event, self._checksum)))
        if self._known.is_needed and self._known.is_skipped(event, self._checksum):
            return
        self._catch_up.at = end
        for output in self._assembler.take(begin, end, event):
            self._output(output)

    def _describe(self, begin: Location, event: bytes) -> None:
        self._described = description_digest(event)
        if begin[:2] != self._end[:2]:
            return
        if begin == self._checkpoint.place and not self._checkpoint.history:
            self._checkpoint = replace(self._checkpoint, history=self._described)
        if self._end_described not in (0, self._described):
            raise NeedsOperator(
                f"the relay log's {begin.file} is not the file that was read up to {self._end}",
                "move the relay log away: it is fetched again from the server",
                Code.RELAY_DAMAGED,
            )
        self._end_described = self._described

    def _drop_open(self) -> None:
        self._gatherer.drop_open()
        self._left_out.drop_open()
        self._cascaded.drop_open()

    def _is_table_skipped(self, schema: str, table: str) -> bool:
        return self._left_out.has(schema, table) and not self._catch_up.has((schema, table))

    def _is_skipped(self, end: Location) -> bool:
        found = self._context.counters.rulings.get(place_text(end), {})
        return found.get("verb") == Verb.SKIP.value

    def _choose(self, table_map: TableMap) -> Routed | SequenceRows | None:
        if self._catch_up.has((table_map.schema, table_map.table)):
            return None
        return self._context.tables.choose(table_map)

    def _output(self, output: Output) -> None:
        if isinstance(output, TableChanges):
            transcoder = output.transcoder
            assert isinstance(transcoder, Routed), "all transcoders are made by `Tables`"
            kind, rows = output.changes
            try:
                self._gatherer.add(transcoder.here, transcoder.policy, kind, rows)
            except NeedsOperator as error:
                found = transcoder.table_map
                raise Refused(error, (found.schema, found.table)) from error
        elif isinstance(output, Cascaded):
            self._cascaded.add(output.rows)
        elif isinstance(output, Finished):
            self._finished(output)
        elif isinstance(output, Statement):
            self._statement(output)
        elif isinstance(output, SkippedRows):
            name, skipped = output
            self._left_out.add(name, skipped)
            if name is None or not self._left_out.has(*name):
                label = ".".join(name) if name else "no table"
                number = "unknown number of" if skipped is None else str(skipped)
                log.warning(
                    "after %s: an event of %s is skipped, %s rows", self._end, label, number
                )
        else:
            assert isinstance(output, Undone), "there are no others"
            for each, undone in self._gatherer.undo().items():
                self._left_out.add(each, undone)
                log.warning(
                    "after %s: %d rows of %s are skipped", self._end, undone, ".".join(each)
                )

    def _finished(self, finished: Finished) -> None:
        if self._context.tables.sequences.is_due:
            # Before the checkpoint passes the rows that cause it, or they would not be seen again.
            self._submit()
            self._writer.drain()
            self._context.tables.reserve_numbers()
            self._assembler.forget_tables()
        if self._gatherer.is_large:
            self._submit()  # Earlier transactions go first, because a large one goes alone.
        origin = self._origin(finished.end, finished.gtid)
        is_large = self._gatherer.is_large
        if self._gatherer.finish(origin):
            self._written = finished.end
            self._note_commit()
        if (self._catch_up.is_active and self._catch_up.passed()) or self._are_keys_gone:
            self._assembler.forget_tables()
            self._are_keys_gone = False
        if self._left_out.finish(str(finished.end)):
            self._context.counters.left_out = self._left_out.tables
        for label in self._cascaded.finish(str(finished.end), finished.timestamp_s):
            log.warning(
                "%s: a parent's rows changed, and foreign keys may have changed rows of %s, which"
                " no binlog has: until penstock verify --repair --source-status has run, they may"
                " differ downstream",
                place_text(finished.end), label,
            )  # fmt: skip
        self._advance(finished.end, finished.gtid)
        self._context.counters.seen_s = finished.timestamp_s
        if is_large or self._gatherer.is_full:
            self._submit()

    def _statement(self, statement: Statement) -> None:
        """Commit everything before the DDL, run it, then record its position in any case."""
        counters = self._context.counters
        counters.statement_place = place_of(statement)
        translation, verdict = self._decided(statement)
        pieces = [piece for piece in verdict.pieces if piece is not None]
        for name, number in verdict.joined:
            self._left_out.begin(name, str(statement.end), number)
        self._reload_again((*verdict.moved, *(name for name, _ in verdict.joined)))
        if pieces:
            self._barrier()
            origin = self._origin(statement.end, statement.gtid)
            _before_ddl()
            self._context.statements.execute(statement, verdict.pieces, origin)
            _after_ddl()
            self._note_commit()
        elif translation.skipped:
            log.info("%s: skipped, %s", place_of(statement), translation.skipped)
        if self._follow_keys(statement) or pieces or verdict.renamed:
            self._assembler.forget_tables()
        self._note_skipped(statement, translation, verdict)
        self._checkpoint = replace(self._checkpoint, kept=dict(translation.kept))
        self._advance(statement.end, statement.gtid)
        counters.seen_s = statement.timestamp_s
        counters.statement_place = ""
        if pieces:
            counters.ddl += 1
            self._barrier()

    def _follow_keys(self, statement: Statement) -> bool:
        """Follow the server's foreign keys; return whether they have changed."""
        keys = self._context.keys
        if keys is None:
            return False
        schema = statement.query.schema.decode()
        parsed = self._context.statements.parsed(statement)
        for each in parsed or ():
            self._cascaded.follow(each, schema, keys.is_followed)
        return keys.after(statement, parsed, schema)

    def _reload_again(self, names: Sequence[Name]) -> None:
        """End the reloads of created, renamed or dropped tables, so that they start again."""
        found = [self._left_out.of(name) for name in names]
        ended = dict.fromkeys(each.reload for each in found if each is not None and each.reload)
        if not ended:
            return
        reloads = self._checkpoint.reloads
        numbers = {old: reloads + n for n, old in enumerate(ended, 1)}
        tables = [each for each in self._left_out.tables if each.reload in numbers]
        self._context.cancel_reload([each.name for each in tables])
        for each in tables:
            log.warning("the reload of %s begins again: a statement moves it", each.label)
            self._left_out.change(replace(each, reload=numbers[each.reload]))
        reloads += len(numbers)
        self._checkpoint = replace(self._checkpoint, reloads=reloads)
        self._stopped.set()  # The next run starts them.

    def _decided(self, statement: Statement) -> tuple[Translation, Verdict]:
        statements, counters = self._context.statements, self._context.counters
        translation = statements.translate(
            statement, self._checkpoint.kept, counters.rulings, self._left_out
        )
        translation = self._catch_up.without_loaded(translation)
        return translation, statements.judge(statement, translation, self._left_out)

    def _note_skipped(
        self, statement: Statement, translation: Translation, verdict: Verdict
    ) -> None:
        place = str(statement.end)
        counted: list[tuple[Name, ...]] = [(name,) for name in verdict.counted]
        if translation.left_out is not None:
            counted.append(translation.left_out)
        for names in counted:
            text = statement.query.statement[:_LOGGED_BYTES].decode(errors="replace")
            log.warning("%s: a statement is skipped: %r", place_of(statement), text)
            self._left_out.add_statement(names, place)
        for name in verdict.dropped:
            log.warning("%s: %s, which is skipped, is dropped", place_of(statement), ".".join(name))
            self._left_out.drop(name, place)
        for old, new in verdict.renamed:
            says = "is skipped as" if self._left_out.has(*old) else "is followed as"
            log.warning("%s: %s %s %s", place_of(statement), ".".join(old), says, ".".join(new))
            self._left_out.rename(old, new)
        self._context.counters.left_out = self._left_out.tables

    def _origin(self, end: Location, gtid: str) -> Origin:
        return self._checkpoint.origin(self._context.source_id, end, gtid, self._written)

    def _note_commit(self) -> None:
        if self._checkpoint.after:
            self._checkpoint = replace(self._checkpoint, after="")

    def _advance(self, end: Location, gtid: str) -> None:
        if gtid:
            if isinstance(self._gtids, MariadbGtidSet):
                self._gtids.add(MariadbGtid(*map(int, gtid.split("-"))))
            else:
                self._gtids = self._gtids.union(MysqlGtidSet.parse(gtid))
        self._end, self._restart = end, self._assembler.restart
        self._end_described = self._described

    def _idle(self) -> None:
        self._submit(is_idle=True)
        self._context.counters.idle = not self._writer.is_busy
        self._save_when_due()
        if self._context.keys is not None:
            self._context.keys.refresh()
        self._reader.wait()
        self._context.counters.idle = False

    def _submit(self, *, is_idle: bool = False) -> None:
        checkpoint = self._noted()
        group = self._gatherer.take()
        if group:
            done = partial(self._is_committed, checkpoint, len(group))
            self._writer.submit(group, done, is_idle=is_idle)
        elif checkpoint is not self._committed and not self._writer.is_busy:
            self._is_committed(checkpoint, 0)

    def _noted(self) -> Checkpoint:
        end, restart = self._end, self._restart
        if str(end) != self._checkpoint.done:
            self._checkpoint = replace(
                self._checkpoint,
                epoch=self._checkpoint.epoch_of(end),
                done=str(end),
                since_s=0,
                restart="" if restart is None or restart >= end else str(restart),
                left_out=self._left_out.tables,
                cascaded=self._cascaded.tables,
                described=self._end_described,
                written="" if self._written is None else str(self._written),
            )
        if self._checkpoint.done == self._committed.done:
            return self._checkpoint
        gtids = str(self._gtids)
        if gtids != self._checkpoint.gtids:
            self._checkpoint = replace(self._checkpoint, gtids=gtids)
        return self._checkpoint

    def _is_committed(self, checkpoint: Checkpoint, count: int) -> None:
        with self._lock:
            self._committed = checkpoint
        self._context.counters.committed(checkpoint, count)

    def _barrier(self) -> None:
        self._submit()
        self._writer.drain()
        self._is_committed(self._noted(), 0)
        self._save()

    def _save_when_due(self) -> None:
        if time.monotonic() - self._saved_s >= _CHECKPOINT_INTERVAL_S:
            self._save()

    def _save(self) -> None:
        self._saved_s = time.monotonic()
        with self._lock:
            checkpoint = self._committed
        if checkpoint != self._saved:
            _before_checkpoint()
            rulings = self._context.counters.rulings
            self._context.store.save(replace(checkpoint, rulings=rulings))
            self._saved = self._context.counters.stored = checkpoint
        keys = self._context.keys
        if keys is not None:
            self._are_keys_gone |= keys.passed(self._saved.place)

    def _switched(self, begin: Location) -> None:
        """Continue with another sub-directory: another server, or a history that was accepted.

        It is stored before any of its transactions is committed, so that its epoch stays the same.
        """
        if self._catch_up.is_active:
            raise changed_within_load()
        self._reload_again([each.name for each in self._left_out.tables])
        self._barrier()
        server = self._reader.server()
        is_accepted = self._checkpoint.accepts.startswith(f"{server} {begin.file} ")
        if is_accepted:
            self._gtids = parse_gtid_set("", self._context.flavor)
        elif server == self._checkpoint.server:
            raise NeedsOperator(
                f"{server} was reset or put back: its {begin} does not continue {self._end}",
                "see penstock source continue and reload --all",
                Code.SERVER_RESET,
            )
        epoch = self._checkpoint.epoch_of(begin)
        log.info("on in %s of %s, epoch %d", begin, server, epoch)
        self._suffix, self._end, self._restart = begin.suffix, begin, None
        self._written = None
        self._context.counters.rulings = forget_overrides(self._context.counters.rulings, begin)
        self._checkpoint = replace(
            self._checkpoint,
            epoch=epoch,
            done=str(begin),
            restart="",
            server=server,
            gtids=str(self._gtids),
            since_s=0,
            skips_known=not is_accepted,
            described=0,
            written="",
            accepts="",
            loaded="",
            history=0,
            after="" if is_accepted else self._checkpoint.last,
        )
        self._described = self._end_described = 0
        self._known = self._known_from(self._checkpoint)
        if self._context.keys is not None:
            self._context.keys.switched()
        self._assembler = self._assembler_from(begin)
        self._drop_open()
        self._is_committed(self._checkpoint, 0)
        self._save()

    def _assembler_from(self, done: Location) -> Assembler:
        keys = self._context.keys
        return Assembler(
            self._choose,
            done=done,
            is_table_skipped=self._is_table_skipped,
            is_skipped=self._is_skipped,
            effects=keys.effects if keys is not None else lambda name: None,
        )

    def _known_from(self, checkpoint: Checkpoint) -> KnownTransactions:
        return KnownTransactions(
            self._gtids.copy() if checkpoint.skips_known else None, checkpoint.since_s
        )

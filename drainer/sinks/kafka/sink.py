"""Kafka sink: each batch and its checkpoint are one Kafka transaction (`drainer.sinks.kafka`).

    start to write   init_transactions ─ read the checkpoint topic to its end ─ is it still ours?
                     do the topics still have all messages committed to them?
    a batch          begin ─ messages ─ records of topics ─ checkpoint ─ flush ─ commit
    any failure      the producer is dropped, and the next try starts to write again

Each try therefore knows the committed state before it sends a message. A producer that continues
need not check again, because the brokers fence it as soon as another producer starts to write.

Messages that are too large for a topic become files (`claim-check-dir`):

    <folder>/<topic>/<commit_ts>-<first 32 digits of the SHA-256 of the message>

The message determines the name, so a retry writes the same file again. The file is durable before
the Kafka transaction commits whose message refers to it.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from drainer.settings.targets import STOP, KafkaTarget
from drainer.sinks.checkpoint import Checkpoint, OverrideChange, of_another_cluster, overridden
from drainer.sinks.kafka.checkpoint_topic import Offsets, checkpoint_key, lost, read_checkpoints
from drainer.sinks.kafka.producing import REPLACED, Producing, RecordHeaders, refusal
from drainer.sinks.kafka.topics import TopicOwners, Topics, encoding_of, with_valid_names
from drainer.sinks.patience import PASSING_ERRNOS, RetryingSink
from drainer.sinks.protocol import (
    EventSink,
    Refused,
    checkpoint_stored,
    ddl_run,
    rows_changed,
    transaction_begun,
    transaction_committed,
)
from drainer.task.events.event_unit import encoder_of, stream_encoder_of
from drainer.task.events.messages import WHOLE, Message, Messages, Row
from drainer.task.events.topics.destination import hash_of, topic_of
from drainer.task.events.topics.json_row import json_text
from drainer.task.work_unit import TransactionStart
from penstock.codes import Code
from penstock.ddl import Catalog
from penstock.errors import NeedsOperator
from penstock.log.files import replace_file, sync_folder
from penstock.schema.tidb_json import origin_to_json

if TYPE_CHECKING:
    from drainer.sinks.protocol import Slices
    from penstock.ddl import SchemaChange


def keep_whole(folder: Path, topic: str, commit_ts: int, message: bytes) -> str:
    """Store a message durably and return its file's URL; raise `OSError`.

    The folder must exist: it may be a mount that has gone away.
    """
    place = folder / topic
    if not place.is_dir():
        place.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder)
    path = place / f"{commit_ts}-{hashlib.sha256(message).hexdigest()[:32]}"
    replace_file(path, message, mode=0o600)
    return path.as_uri()


log = logging.getLogger(__name__)

_TRY_S = 30.0
"""How long one try waits for the brokers."""
_KEY_SHOWN = 200
_NO_EXCEPTION = "without setting an exception"
_COMMIT_TS, _START_TS, _ORIGIN = "penstock.commit_ts", "penstock.start_ts", "penstock.origin"
_CLAIM_CHECK = "penstock.claim_check"


class KafkaSink(RetryingSink, EventSink):
    """See `EventSink`; usable from any one thread at a time."""

    def __init__(
        self, target: KafkaTarget, *, cluster_id: int, retry_s_max: float, accepted_ts: int = -1
    ) -> None:
        """Make no connection; accept all topics as they are at checkpoint `accepted_ts`."""
        self._target = target = with_valid_names(target)
        target.current_password()  # Report an unreadable file now.
        self.encoding = encoding_of(target, cluster_id)
        name = f"Kafka at {target.bootstrap_servers}"
        super().__init__(name, cluster_id=cluster_id, retry_s_max=retry_s_max)
        self._accepted_ts = accepted_ts
        self._topics = Topics(target)
        self._offsets = Offsets()
        self._producing: Producing | None = None
        self._watermark_s = 0.0
        self._owners = TopicOwners(target, self.encoding)

    # --- the protocol ----------------------------------------------------------------------

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the stored checkpoint without writing or disturbing an active writer."""
        self._ledger.loaded(self._patience.retrying(lambda _: self._stored()))
        return self._ledger.last

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._commit(lambda producing: None, checkpoint)

    def change_overrides(self, change: OverrideChange) -> None:
        """Change the checkpoint's overrides; fence the active run, which then reads them."""

        def attempt(_: bool) -> None:
            producing = self._begin_writing()
            text = overridden(self._stored(), change)
            self._topics.ensure([self._target.checkpoint_topic], producing.admin)
            producing.begin()
            self._send_checkpoint(producing, text)
            producing.flush(_TRY_S)
            producing.commit(_TRY_S)

        self._patience.retrying(attempt)
        self._let_go()

    def put(self, messages: Sequence[Messages], checkpoint: Checkpoint) -> None:
        def work(producing: Producing) -> None:
            for each in messages:
                self._send(producing, each)

        self._commit(work, checkpoint)

    def put_slices(self, slices: Slices[Messages], checkpoint: Checkpoint) -> None:
        def work(producing: Producing) -> None:
            with closing(slices()) as parts:
                whole = self._joined(parts) if self._target.sends_transactions else parts
                for each in whole:
                    self._send(producing, each)

        self._commit(work, checkpoint)

    def run_ddl(self, change: SchemaChange, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        self._owners.change(change)
        for topic in self._owners.unused(self._offsets.known):
            self._offsets.decide(topic, None)
        made = encoder_of(self.encoding).ddl(checkpoint.commit_ts, change)
        messages = Messages.of((checkpoint.commit_ts, message) for message in made)

        def work(producing: Producing) -> None:
            self._send(producing, messages)
            ddl_run()

        self._commit(work, checkpoint)

    def look_at(self, catalog: Catalog) -> None:
        """Record the topics of all tables; raise `NeedsOperator` if two tables have the same topic.

        It also raises for a topic that has lost messages since the checkpoint was stored.
        """
        self._owners.look_at(catalog)
        self._patience.retrying(lambda _: self._check_topics(self._begin_writing()))

    # --- a transaction ---------------------------------------------------------------------

    def _commit(self, work: Callable[[Producing], None], checkpoint: Checkpoint) -> None:
        def attempt(text: str, retried: bool) -> None:
            producing = self._producing
            if producing is None or not self._target.is_transactional:
                is_new = producing is None
                producing = self._begin_writing()
                if self._ledger.is_written(self._stored(), text, retried=retried):
                    return
                if is_new:
                    self._check_topics(producing)
            self._topics.ensure([self._target.checkpoint_topic], producing.admin)
            producing.begin()
            transaction_begun()
            work(producing)
            every_s, now_s = self._target.watermark_s, time.monotonic()
            if every_s and checkpoint.commit_ts and now_s - self._watermark_s >= every_s:
                message = stream_encoder_of(self.encoding).watermark(checkpoint.commit_ts)
                self._send(producing, Messages.of([(checkpoint.commit_ts, message)]))
                self._watermark_s = now_s
            rows_changed()
            if not (self._target.is_transactional and self._offsets.are_known):
                producing.flush(_TRY_S)
            for topic, record in self._offsets.changed(self._topics.id).items():
                key = checkpoint_key(self._target.prefix, self._cluster_id, topic)
                value = None if record is None else record.to_json().encode()
                producing.produce(self._target.checkpoint_topic, value, key, 0)
            self._send_checkpoint(producing, text)
            checkpoint_stored()
            producing.flush(_TRY_S)
            producing.commit(_TRY_S)
            transaction_committed()

        self._storing(attempt, checkpoint)

    def _begin_writing(self) -> Producing:
        if self._producing is None:
            transactional_id = ""
            if self._target.is_transactional:
                transactional_id = f"penstock-{self._target.prefix}-{self._cluster_id}"
            self._producing = Producing(
                self._target, transactional_id, self._patience.closing.is_set, self._offsets
            )
            self._producing.begin_writing(_TRY_S)
        return self._producing

    def _send(self, producing: Producing, messages: Messages) -> None:
        self._topics.ensure({topic_of(to) for to in messages.destinations()}, producing.admin)
        for commit_ts, rows in groupby(messages.rows(), itemgetter(0)):
            headers = _headers(commit_ts, messages.starts.get(commit_ts))
            self._send_transaction(producing, commit_ts, rows, headers)

    def _send_transaction(
        self, producing: Producing, commit_ts: int, rows: Iterable[Row], headers: RecordHeaders
    ) -> None:
        bytes_max = self._target.message_bytes_max
        chosen: dict[str, tuple[str, int]] = {}
        for _, to, key, value, own in rows:
            size = len(value or b"") + len(key or b"")
            if size > bytes_max:
                raise self._oversize(commit_ts, to, key, size)
            if to not in chosen:
                topic = topic_of(to)
                chosen[to] = topic, self._topics.partition(topic, hash_of(to, commit_ts))
            topic, partition = chosen[to]
            if own:
                folder = Path(self._target.claim_check_dir)
                url = keep_whole(folder, topic, commit_ts, dict(own)[WHOLE]).encode()
                producing.produce(topic, value, key, partition, [*headers, (_CLAIM_CHECK, url)])
            else:
                producing.produce(topic, value, key, partition, headers)

    def _joined(self, parts: Iterable[Messages]) -> Iterator[Messages]:
        held: list[bytes] = []
        size, bytes_max = 0, self._target.message_bytes_max
        for part in parts:
            for commit_ts, to, key, value, _ in part.rows():
                held.append(value or b"")
                size += len(held[-1])
                if size > bytes_max:
                    raise self._oversize(commit_ts, to, key, size, "at least ")
        if held:
            yield Messages.of([(commit_ts, Message(b"".join(held), key, to))], part.starts)

    def _oversize(
        self, commit_ts: int, to: str, key: bytes | None, size: int, or_more: str = ""
    ) -> Refused:
        topic = topic_of(to)
        shown = (key or b"").decode(errors="replace")[:_KEY_SHOWN]
        what = f"transaction {commit_ts}, key {shown or 'none'}"
        other = "set oversize=key-only or claim-check, by which readers get the row's key"
        if self._target.oversize != STOP:
            other = "give the table a primary key, which readers get instead"
        if self._target.sends_transactions:
            what = f"transaction {commit_ts}"
            other = "choose a format in which a message is a row"
        return Refused(
            f"a message for topic {topic} ({what}) has {or_more}{size} bytes, and max-message-bytes"
            f" is {self._target.message_bytes_max}",
            hint="raise max-message-bytes in the sink's URL and max.message.bytes of the topic; or"
            f" {other}",
            code=Code.ROW_TOO_LARGE,
        )

    def _send_checkpoint(self, producing: Producing, text: str) -> None:
        key = checkpoint_key(self._target.prefix, self._cluster_id)
        producing.produce(self._target.checkpoint_topic, text.encode(), key, 0)

    # --- the stored checkpoint -------------------------------------------------------------

    def _stored(self) -> str | None:
        target = self._target
        looking = self._producing or Producing(target, "", self._patience.closing.is_set)
        try:
            if not self._topics.has(target.checkpoint_topic, looking.admin):
                return None
            checkpoints, topics = read_checkpoints(
                looking.options, target.checkpoint_topic, target.prefix, _TRY_S
            )
        except KafkaException:
            looking.look()
            raise
        finally:
            if looking is not self._producing:
                looking.abandon()
        if self._cluster_id not in checkpoints and checkpoints:
            raise of_another_cluster(self._cluster_id, list(checkpoints), "prefix")
        self._offsets.load(topics.get(self._cluster_id, {}))
        return checkpoints.get(self._cluster_id)

    def _check_topics(self, producing: Producing) -> None:
        unused = self._owners.unused(self._offsets.known) | {self._target.checkpoint_topic}
        known = {
            topic: record for topic, record in self._offsets.known.items() if topic not in unused
        }
        if not known:
            return
        found = self._topics.found(known, producing.admin)
        last = self._ledger.last
        for topic, record in known.items():
            difference = record.difference(found.get(topic))
            if not difference:
                continue
            error = lost(topic, difference, None if last is None else last.commit_ts)
            if last is None or last.commit_ts != self._accepted_ts:
                raise error
            log.warning("%s; initial-commit-ts accepts it as it is", error.problem)
            self._offsets.decide(topic, found.get(topic))

    # --- outages ---------------------------------------------------------------------------

    def _let_go(self) -> None:
        producing, self._producing = self._producing, None
        if producing is not None:
            producing.abandon()

    def _passing(self, error: Exception) -> str:
        # A delivery report in the same call as a fatal error hides the error, or leaves none.
        if isinstance(error, SystemError):
            if isinstance(error.__cause__, KafkaException):
                error = error.__cause__
            elif _NO_EXCEPTION in str(error):
                error = KafkaException(KafkaError(KafkaError._FAIL, str(error)))
        folder = self._target.claim_check_dir
        if isinstance(error, OSError) and folder:
            if error.errno not in PASSING_ERRNOS:
                raise NeedsOperator(
                    f"claim-check-dir {folder}: {error.strerror or error}",
                    "let the Drainer write into that folder, mounted if it is a mount; nothing is"
                    " lost: the batch is sent again",
                    Code.SINK_FILE,
                ) from error
            return f"claim-check-dir: {error.strerror}"
        if not isinstance(error, KafkaException):
            raise error
        fault: KafkaError = error.args[0]
        found = None if fault.code() in REPLACED else refusal(fault)
        if found is not None:
            raise found from error
        self._topics.forget()
        away = fault.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
        return f"{fault.str()} (start it, or correct its address)" if away else fault.str()


def _headers(commit_ts: int, start: TransactionStart | None) -> RecordHeaders:
    made: RecordHeaders = [(_COMMIT_TS, b"%d" % commit_ts)]
    if start is not None:
        made.append((_START_TS, b"%d" % start.start_ts))
        if start.origin is not None:
            # All values are texts: Kafka Connect reads JSON in a header, and has no schema for
            # values of several types.
            place = {name: str(value) for name, value in origin_to_json(start.origin).items()}
            made.append((_ORIGIN, json_text(place).encode()))
    return made

"""Topics: ensures that an output's topics exist and accept its messages, and caches partitions.

A topic's partitions are counted once. If it grows later, it is written as before, so that no key
moves while a Drainer runs.

`TopicOwners` has the table of each topic, so that no two tables share a topic by accident. Kafka
allows fewer characters in topic names than servers allow in table names, so names may
collide. Each character that a topic cannot have becomes `_`, and `a.b`.`c` reads like `a`.`b.c`. A
template without `{schema}` or `{table}` lets tables share a topic on purpose.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from drainer.settings.targets import CLAIM_CHECK, STOP, KafkaTarget
from drainer.sinks.kafka.checkpoint_topic import TopicRecord
from drainer.sinks.kafka.producing import refusal
from drainer.task.events.event_unit import Encoding, destinations_of
from drainer.task.events.topics.destination import Destinations, topic_name, topic_of
from penstock.codes import Code
from penstock.errors import NeedsOperator

if TYPE_CHECKING:
    from penstock.ddl import Catalog, SchemaChange
    from penstock.schema.model import TableInfo

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID)
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "3600000",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}


def with_valid_names(target: KafkaTarget) -> KafkaTarget:
    checkpoint_topic = topic_name(target.checkpoint_topic)
    return replace(target, prefix=topic_name(target.prefix), checkpoint_topic=checkpoint_topic)


def encoding_of(target: KafkaTarget, cluster_id: int) -> Encoding:
    prefix = topic_name(target.prefix)
    topic = target.topic_template.replace("{cluster}", str(cluster_id))
    if target.sends_transactions:
        topic = topic.replace("{prefix}", prefix)
    return Encoding(
        target.format,
        prefix=prefix,
        topic=topic,
        partition=target.partition,
        bytes_max=0 if target.oversize == STOP else target.message_bytes_max,
        keeps_whole=target.oversize == CLAIM_CHECK,
        only_changed=target.old == "changed",
        schemas=target.schemas,
        tombstones=target.tombstones,
        decimals=target.decimals,
        time_zone=target.time_zone,
    )


class Topics:
    """The known topics by name; raises `KafkaException` if no broker answers."""

    def __init__(self, target: KafkaTarget) -> None:
        self._target = target
        self._partitions: dict[str, int] = {}
        self._ids: dict[str, str] = {}

    def forget(self) -> None:
        self._partitions.clear()

    def id(self, topic: str) -> str:
        """Return the id of an ensured topic; empty if the brokers have no topic ids."""
        return self._ids.get(topic, "")

    def partition(self, topic: str, chosen: int) -> int:
        return chosen % self._partitions[topic]

    def has(self, topic: str, admin: AdminClient) -> bool:
        return topic in self._partitions or topic in self._there(admin)

    def ensure(self, names: Iterable[str], admin: AdminClient) -> None:
        """Return once all topics exist; raise `NeedsOperator` for a topic that cannot be written.

        Such a topic is missing and may not be created, or accepts only smaller messages.
        """
        new = sorted(set(names) - self._partitions.keys())
        if not new:
            return
        there = self._there(admin)
        missing = [name for name in new if name not in there]
        if missing:
            self._create(missing, admin)
            there = self._there(admin)
        unseen = [name for name in new if name not in there]
        if unseen:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        self._check_limits(new, admin)
        described = self._described(new, admin)
        self._ids |= {name: topic_id for name, (topic_id, _) in described.items()}
        self._partitions |= {name: there[name] for name in new}

    def found(self, known: Mapping[str, TopicRecord], admin: AdminClient) -> dict[str, TopicRecord]:
        described = self._described(known, admin)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {
            TopicPartition(name, partition): latest
            for name, (_, count) in described.items()
            for partition in known[name].ends
            if partition < count
        }
        ends: dict[str, dict[int, int]] = {}
        if asked:
            # The end includes messages of open transactions, and markers: none of them is taken
            # back.
            listed = admin.list_offsets(
                asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=TIMEOUT_S
            )
            for each, future in listed.items():
                ends.setdefault(each.topic, {})[each.partition] = future.result().offset
        return {
            name: TopicRecord(topic_id, ends.get(name, {}))
            for name, (topic_id, _) in described.items()
        }

    def _described(self, names: Iterable[str], admin: AdminClient) -> dict[str, tuple[str, int]]:
        found: dict[str, tuple[str, int]] = {}
        collection = TopicCollection(sorted(names))
        asked = admin.describe_topics(collection, request_timeout=TIMEOUT_S)
        for name, future in asked.items():
            try:
                described = future.result()
            except KafkaException as error:
                if error.args[0].code() not in _NO_TOPIC:
                    raise
                continue
            made = described.topic_id
            has_id = made.get_most_significant_bits() or made.get_least_significant_bits()
            found[name] = str(made) if has_id else "", len(described.partitions)
        return found

    def _there(self, admin: AdminClient) -> Mapping[str, int]:
        found = admin.list_topics(timeout=TIMEOUT_S / 2).topics
        return {name: len(each.partitions) for name, each in found.items() if each.error is None}

    def _create(self, names: list[str], admin: AdminClient) -> None:
        target = self._target
        if not target.create_topics:
            raise NeedsOperator(
                f"Kafka has no topic {', '.join(names)}, and create-topics is false",
                f"create it, {target.checkpoint_topic} with one partition and"
                " cleanup.policy=compact; or set create-topics=true in the sink's URL",
                Code.KAFKA_TOPIC,
            )
        asked = [self._new_topic(name) for name in names]
        for name, future in admin.create_topics(asked, request_timeout=TIMEOUT_S).items():
            try:
                future.result()
                log.info("created the topic %s", name)
            except KafkaException as error:
                fault = error.args[0]
                if fault.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise refusal(fault, name) or error from error

    def _new_topic(self, name: str) -> NewTopic:
        target = self._target
        is_ours = name == target.checkpoint_topic
        config = dict(_COMPACTED) if is_ours else {}
        if target.message_bytes_max > 1_000_000:
            config["max.message.bytes"] = str(target.message_bytes_max + 4096)
        is_single = is_ours or name in (f"{target.prefix}.ddl", f"{target.prefix}.transaction")
        return NewTopic(
            name,
            num_partitions=1 if is_single else target.partitions or -1,
            replication_factor=target.replication_factor or -1,
            config=config,
        )

    def _check_limits(self, names: list[str], admin: AdminClient) -> None:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        asked: dict[Any, Any] = admin.describe_configs(resources, request_timeout=TIMEOUT_S)
        wanted = self._target.message_bytes_max
        for resource, future in asked.items():
            try:
                settings = future.result()
                limit = int(settings["max.message.bytes"].value)
            except KafkaException as error:
                log.warning("cannot see how much topic %s takes: %s", resource.name, error)
                continue
            name, policy = resource.name, settings["cleanup.policy"].value
            if name == self._target.checkpoint_topic and policy != "compact":
                raise NeedsOperator(
                    f"topic {name} has cleanup.policy={policy}, so Kafka deletes the checkpoint"
                    " once its retention time is over",
                    f"set cleanup.policy=compact for it: kafka-configs.sh --alter --topic {name}"
                    " --add-config cleanup.policy=compact",
                    Code.KAFKA_TOPIC,
                )
            if limit < wanted:
                raise NeedsOperator(
                    f"topic {resource.name} takes messages of up to {limit} bytes, and"
                    f" max-message-bytes is {wanted}",
                    "raise max.message.bytes of the topic, or set max-message-bytes in the"
                    " sink's URL and choose by oversize what happens to rows above it",
                    Code.ROW_TOO_LARGE,
                )


class TopicOwners:
    """The existing tables, by their topics."""

    def __init__(self, target: KafkaTarget, encoding: Encoding) -> None:
        self._destinations: Destinations | None = None
        self._owners: dict[str, tuple[tuple[str, str], str]] = {}
        self._tables: dict[tuple[str, str], str] = {}
        self._own: tuple[str, ...] = ()
        if target.sends_transactions:
            return  # All tables share the one topic.
        found = destinations_of(encoding)
        self._destinations = found
        self._own = (topic_of(found.ddl), topic_of(found.transactions), target.checkpoint_topic)
        self._owners = {topic: (("", topic), "the Drainer itself") for topic in self._own}

    def look_at(self, catalog: Catalog) -> None:
        """Register all tables of a catalog; raise `NeedsOperator` if two share a topic."""
        for schema, table in catalog.tables():
            self._add(schema, table)

    def unused(self, topics: Iterable[str]) -> set[str]:
        """Return the topics that belong to neither the Drainer nor an existing table."""
        if self._destinations is None:
            return set()
        return set(topics).difference(self._own, self._tables.values())

    def change(self, change: SchemaChange) -> None:
        """Apply a DDL's new and renamed tables; raise `NeedsOperator` if two have one topic.

        A dropped table keeps its topic, because readers still have its messages there.
        """
        for schema, table in (*change.dropped, *(each[:2] for each in change.renamed)):
            self._tables.pop((schema, table.name), None)
        for schema, table in change.created:
            self._add(schema, table)
        for _, _, schema, table in change.renamed:
            self._add(schema, table)

    def _add(self, schema: str, table: TableInfo) -> None:
        if self._destinations is None or table.kind != "TABLE":
            return
        topic = self._destinations.topic(schema, table.name)
        owner = self._destinations.shared_by(schema, table.name)
        text = f"table {schema}.{table.name}"
        self._tables[schema, table.name] = topic
        known, known_text = self._owners.setdefault(topic, (owner, text))
        if known != owner:
            raise NeedsOperator(
                f"{text} would have the topic {topic}, which is that of {known_text}",
                "route one of the tables to a name of letters, digits, - and _, or leave it"
                " out by a filter; or name the topics by another template (topic in the sink's"
                " URL)",
                Code.KAFKA_TOPIC,
            )

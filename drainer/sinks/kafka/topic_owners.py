"""Topic owners: the table of each topic, so that no two tables share a topic by accident.

Kafka allows fewer characters in topic names than servers allow in table names, so names may
collide. Each character that a topic cannot have becomes `_`, and `a.b`.`c` reads like `a`.`b.c`. A
template without `{schema}` or `{table}` lets tables share a topic on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from drainer.sinks.kafka.kafka_url import KafkaTarget
from drainer.task.events.topics.destination import Destinations, topic_of
from penstock.codes import Code
from penstock.errors import NeedsOperator

if TYPE_CHECKING:
    from penstock.ddl import Catalog, SchemaChange
    from penstock.schema.model import TableInfo


class TopicOwners:
    """The existing tables, by their topics."""

    def __init__(self, target: KafkaTarget) -> None:
        options = dict(target.encoding.options)
        self._destinations: Destinations | None = None
        self._owners: dict[str, tuple[tuple[str, str], str]] = {}
        self._tables: dict[tuple[str, str], str] = {}
        self._own: tuple[str, ...] = ()
        if target.sends_transactions:
            return  # All tables share the one topic.
        found = Destinations(
            prefix=options["prefix"], topic=options["topic"], partition=options["partition"]
        )
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
                hint="route one of the tables to a name of letters, digits, - and _, or leave it"
                " out by a filter; or name the topics by another template (topic in the sink's"
                " URL)",
                code=Code.KAFKA_TOPIC,
            )

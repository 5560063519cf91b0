"""Kafka Connect in one process, `ConnectStandalone`, and two connectors of Debezium for it.

They are its JDBC sink, and its source from a MariaDB's binlog.
"""

import json
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Self

from penstock.local.kafka import KafkaServer
from penstock.local.process import ServerProcess, free_port
from penstock.local.sql_server import SqlServer
from tests.kit.wait import eventually

_JSON = "org.apache.kafka.connect.json.JsonConverter"
_START_S = 120.0


class KafkaConnect(ServerProcess):
    """A worker whose connectors read what is committed; keys and values are JSON with schemas."""

    def __init__(
        self,
        home: Path,
        kafka: KafkaServer,
        *connectors: Mapping[str, object],
        jars: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`connectors` are their settings; `jars` names the list of what they need."""
        home.mkdir(parents=True)
        self._url = f"http://127.0.0.1:{free_port()}"
        self._names = [str(each["name"]) for each in connectors]
        worker = {
            "bootstrap.servers": kafka.address,
            "listeners": self._url,
            "key.converter": _JSON,
            "value.converter": _JSON,
            "offset.storage.file.filename": home / "offsets",
            "plugin.discovery": "only_scan",
            "consumer.isolation.level": "read_committed",
            "consumer.auto.offset.reset": "earliest",
        }
        files = []
        for name, settings in [("worker", worker), *zip(self._names, connectors, strict=True)]:
            file = home / f"{name}.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            file.chmod(0o600)  # It may have passwords.
            files.append(str(file))
        program = "org.apache.kafka.connect.cli.ConnectStandalone"
        super().__init__(
            kafka.java(program, *files, jars=[jars]),
            log=home / "connect.log",
            environment=environment,
        )

    def start(self) -> Self:
        """Start it and wait until the connectors run."""
        super().start()
        self._until(are_running=True)
        return self

    def rest(self) -> None:
        """End the connectors' tasks, which commit how far they are; the process goes on."""
        self._ask_all("stop")
        self._until(are_running=False)

    def resume(self) -> None:
        """Let the connectors go on where they ended."""
        self._ask_all("resume")
        self._until(are_running=True)

    def _ask_all(self, action: str) -> None:
        for name in self._names:
            url = f"{self._url}/connectors/{name}/{action}"
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60).close()

    def _until(self, *, are_running: bool) -> None:
        eventually(
            lambda: all((self.failure(name) is not None) is are_running for name in self._names),
            _START_S,
        )

    def failure(self, name: str) -> str | None:
        """Return why a connector has failed, empty while it has not; None before it runs."""
        assert self.is_running, self.log_tail()
        url = f"{self._url}/connectors/{name}/status"
        try:
            with closing(urllib.request.urlopen(url, timeout=5)) as answer:
                tasks = json.load(answer)["tasks"]
        except OSError:
            return None
        return "".join(task.get("trace", "") for task in tasks) if tasks else None

    def has_failed(self, name: str) -> bool:
        return bool(self.failure(name))


def debezium_sink(name: str, server: SqlServer, schema: str, topics: str) -> dict[str, object]:
    """Return the settings of a Debezium JDBC sink from topics, a regex, into a MariaDB's schema."""
    return {
        "name": name,
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": 1,
        "topics.regex": topics,
        "connection.url": f"jdbc:mariadb://{server.host}:{server.port}/{schema}",
        "connection.username": server.user,
        "connection.password": server.password,
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "collection.name.format": "${source.table}",
    }


def debezium_source(
    name: str, server: SqlServer, schema: str, kafka: KafkaServer, **settings: object
) -> dict[str, object]:
    """Return the settings of a Debezium connector from a MariaDB's binlog, without old rows.

    The topics begin with its name; values are JSON without schemas.
    """
    return {
        "name": name,
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "tasks.max": 1,
        "topic.prefix": name,
        "topic.creation.default.partitions": 1,
        "topic.creation.default.replication.factor": 1,
        **{f"{each}.converter": _JSON for each in ("key", "value")},
        **{f"{each}.converter.schemas.enable": "false" for each in ("key", "value")},
        "database.hostname": server.host,
        "database.port": server.port,
        "database.user": server.user,
        "database.password": server.password,
        "database.server.id": 102,
        "database.ssl.mode": "disable",
        "database.include.list": schema,
        "schema.history.internal.kafka.bootstrap.servers": kafka.address,
        "schema.history.internal.kafka.topic": f"{name}-history",
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        **settings,
    }

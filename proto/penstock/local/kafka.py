"""A private Kafka: one broker in KRaft mode, loopback only, from the jars of `deploy/jars.sh`."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from drainer.spark.jvm import use_java
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.local.process import UNPACKED, ServerProcess, completed, free_port

START_S_MAX = 120.0
_HEAP = "-Xmx320m"
_LOGGING = """\
status=error
appender.c.type=Console
appender.c.name=C
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d %p %c{1} %m%n
rootLogger.level=WARN
rootLogger.appenderRef.c.ref=C
"""


def jars_of(name: str) -> Path:
    folder = UNPACKED / name
    if not folder.is_dir():
        raise NeedsOperator(
            f"no jars in {folder}", f"deploy/jars.sh {UNPACKED} {name}", Code.PACKAGE_MISSING
        )
    return folder


@dataclass(frozen=True, kw_only=True)
class KafkaSecurity:
    """A broker that accepts clients only by TLS, with a name and a password (SASL PLAIN)."""

    cert: Path
    key: Path
    users: Mapping[str, str]


class KafkaServer(ServerProcess):
    """One broker whose ports and data stay the same over restarts.

    `settings` are added to its server.properties. Topics are only created explicitly.
    """

    def __init__(
        self,
        home: Path,
        *,
        settings: Mapping[str, object] | None = None,
        security: KafkaSecurity | None = None,
    ) -> None:
        self.home = home
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._controller = f"127.0.0.1:{free_port()}"
        self._settings = dict(settings or {})
        self._security = security
        home.mkdir(parents=True, exist_ok=True)
        super().__init__(
            self.java("kafka.Kafka", str(home / "server.properties")), log=home / "kafka.log"
        )

    def java(self, program: str, *arguments: str, jars: Sequence[str] = ()) -> list[str]:
        """Return the command of one of Kafka's own programs, such as its console consumer.

        `jars` names the jars that it needs beside Kafka's, as `deploy/jars.sh` does.
        """
        folders = [jars_of(name) for name in ("kafka", *jars)]
        java = use_java(self.home / "java") / "bin" / "java"
        logging = self.home / "log4j2.properties"
        logging.write_text(_LOGGING)
        options = [_HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options.append(f"-Dlog4j2.configurationFile={logging}")
        path = ":".join(f"{folder}/*" for folder in folders)
        return [str(java), *options, "-cp", path, program, *arguments]

    def install(self) -> None:
        made = self.home / "server.properties"
        made.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
        made.chmod(0o600)  # It may have passwords.
        cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "x")
        command = self.java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(made))
        completed(command, timeout=120)

    def _properties(self) -> dict[str, object]:
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{self._controller}",
            "listeners": f"CLIENTS://{self.address},CONTROLLER://{self._controller}",
            "advertised.listeners": f"CLIENTS://{self.address}",
            "inter.broker.listener.name": "CLIENTS",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.home / "data",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            **(self._secured(self._security) if self._security else {}),
            **self._settings,
        }

    def _secured(self, security: KafkaSecurity) -> dict[str, object]:
        """Return the settings of a secured client listener; the broker is also a client."""
        keys = self.home / "broker.pem"
        keys.write_bytes(security.key.read_bytes() + security.cert.read_bytes())
        keys.chmod(0o600)
        users = {"broker": "broker", **security.users}
        jaas = " ".join(f'user_{name}="{password}"' for name, password in users.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        return {
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": (
                f'{module} username="broker" password="broker" {jaas};'
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": keys,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": security.cert,
        }

    def start(self) -> Self:
        """Start it and wait until it takes connections; raise `Retryable` with its log if not."""

        def takes_connections() -> bool:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            return True

        return super().start().until(takes_connections, START_S_MAX)

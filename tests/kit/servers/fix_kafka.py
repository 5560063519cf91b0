"""A private Kafka: `kafka` is one broker for the whole session, `fresh_kafka` one to be killed.

Their jars are fetched by the set-up of `make test-slow`, so a test with one of them is marked both
`kafka` and `slow`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.kafka import KafkaServer


def _running(server: KafkaServer) -> Iterator[KafkaServer]:
    server.install()
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One broker for the session; tests must leave it running."""
    yield from _running(KafkaServer(tmp_path_factory.mktemp("kafka")))


@pytest.fixture
def kafka(kafka_server: KafkaServer) -> KafkaServer:
    """The session's broker; a test has topics under a prefix of its own."""
    if not kafka_server.is_running:
        kafka_server.start()
    return kafka_server


@pytest.fixture
def fresh_kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    yield from _running(KafkaServer(tmp_path / "kafka"))

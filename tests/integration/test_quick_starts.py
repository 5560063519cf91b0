"""The quick starts of the documentation, command by command, as they stand there."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.local.kafka import KafkaServer
from penstock.local.sql_server import MariadbServer, mariadb_binlog_options
from tests.kit.servers.fix_quick_start import COMMANDS_MAX, INSTALLING, Reader

pytestmark = [pytest.mark.etcd, pytest.mark.spark]


def test_a_program_of_ones_own_is_a_writer_after_few_commands(
    reader: Callable[..., Reader],
) -> None:
    page = reader("app.md")
    page.follow()
    assert INSTALLING + page.typed <= COMMANDS_MAX


@pytest.mark.mariadb
def test_a_mariadb_follows_another_one_after_few_commands(
    reader: Callable[..., Reader], tmp_path: Path
) -> None:
    upstream = MariadbServer(tmp_path / "upstream", options=mariadb_binlog_options())
    downstream = MariadbServer(tmp_path / "downstream")
    servers = {"upstream": upstream, "downstream": downstream}
    try:
        for server in servers.values():
            server.install()
            server.start()
        replaced = {
            # The account of this name is what the servers were installed with.
            "penstock@": "follower@",
            "penstock:secret@": "follower:secret@",
            "--source-user penstock": "--source-user follower",
            "127.0.0.1:3306": f"127.0.0.1:{upstream.port}",
            "127.0.0.1:3307": f"127.0.0.1:{downstream.port}",
            "--source-host 127.0.0.1": f"--source-host 127.0.0.1 --source-port {upstream.port}",
        }
        page = reader("mysql.md", **replaced)
        for side, statements in page.blocks("sql"):
            with servers[side].connect() as connection, connection.cursor() as cursor:
                for statement in filter(str.strip, statements.split(";\n")):
                    cursor.execute(statement)
        with upstream.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.orders (id INT PRIMARY KEY, what VARCHAR(20))")
            cursor.execute("INSERT INTO shop.orders VALUES (1, 'nut'), (2, 'bolt')")
        page.follow()
        assert INSTALLING + page.typed <= COMMANDS_MAX + 2  # The last ones only look.
        with downstream.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, what FROM shop.orders ORDER BY id")
            assert cursor.fetchall() == ((1, "nut"), (2, "bolt"))
    finally:
        for server in servers.values():
            server.stop()


def test_changes_are_messages_of_a_kafka_after_few_commands(
    reader: Callable[..., Reader], kafka: KafkaServer, tmp_path: Path
) -> None:
    consumer = kafka.java("org.apache.kafka.tools.consumer.ConsoleConsumer")
    script = tmp_path / "kafka-console-consumer.sh"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(consumer)} "$@"\n')
    script.chmod(0o755)
    replaced = {"127.0.0.1:9092": kafka.address, script.name: str(script)}
    page = reader("kafka.md", **replaced)
    page.follow()
    assert INSTALLING + page.typed <= COMMANDS_MAX


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lake.md", "files.md"])
def test_tables_are_in_a_lake_and_changes_in_files_after_few_commands(
    reader: Callable[..., Reader], name: str
) -> None:
    page = reader(name)
    page.follow()
    assert INSTALLING + page.typed <= COMMANDS_MAX


def test_a_program_reads_what_another_one_writes(reader: Callable[..., Reader]) -> None:
    reader("../reading.md").follow()

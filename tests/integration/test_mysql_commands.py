"""`penstock source check`, `inject` and the others as commands on a real MariaDB."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.local.process import free_port
from penstock.local.sql_server import SqlServer
from pumpclient.mysql.source.__main__ import main
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_source import SourceRig, rows_of

Run = Callable[..., tuple[int, str]]


def as_process(*words: str) -> tuple[int, str]:
    """Run the command as a process; return its exit code and all it says."""
    command = [sys.executable, "-m", "pumpclient.mysql.source", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def mysql_source(capsys: pytest.CaptureFixture[str]) -> Run:

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(words)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


@contextmanager
def settings(server: MariadbServer, **changes: str) -> Iterator[None]:
    """Let a server have other global variables for a while."""
    were = {name: server.query(f"SELECT @@global.{name}")[0][0] for name in changes}
    server.run(*(f"SET GLOBAL {name} = '{value}'" for name, value in changes.items()))
    try:
        yield
    finally:
        server.run(*(f"SET GLOBAL {name} = '{value}'" for name, value in were.items()))


def test_check_says_what_fits_what_does_not_and_what_to_do(
    mysql_source: Run, mariadb_binlog: MariadbServer, tmp_path: Path
) -> None:
    server = mariadb_binlog
    server.drop_user_databases()
    config = tmp_path / "source.toml"

    def check(run: Run, user: str, port: int = server.port) -> tuple[int, list[str]]:
        secret = tmp_path / "secret"
        secret.write_text(server.password + "\n")
        config.write_text(f'[source]\nport = {port}\nuser = "{user}"\npassword-file = "{secret}"\n')
        code, printed = run("check", "--config", str(config))
        return code, printed.splitlines()

    code, lines = check(as_process, server.user)
    assert (code, {line[:8].strip() for line in lines}) == (0, {"ok"})
    code, out = mysql_source("check", "--config", str(config), "-o", "json")
    checks = json.loads(out)
    assert (code, {each["verdict"] for each in checks}) == (0, {"ok"})
    assert [each["name"] for each in checks] == [line[8:].split(":")[0].strip() for line in lines]
    who = f"'weak'@'%' IDENTIFIED BY '{server.password}'"
    server.run(f"CREATE OR REPLACE USER {who}", "GRANT SELECT ON *.* TO 'weak'@'%'")
    try:
        with settings(server, binlog_row_image="MINIMAL", binlog_format="MIXED"):
            code, lines = check(mysql_source, "weak")
    finally:
        server.run("DROP USER 'weak'@'%'")
    failed = [line for line in lines if line.startswith("FAILED")]
    assert code == 2
    assert [line.split()[1] for line in failed] == [
        "binlog_format:", "binlog_row_image:", "privileges:",
    ]  # fmt: skip
    below = [line.strip() for line in lines]
    assert "SET GLOBAL binlog_row_image = 'FULL';" in below
    assert "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'weak'@'%';" in below
    code, lines = check(mysql_source, "unheard")
    assert code == 2
    assert "unheard" in lines[0]
    code, lines = check(mysql_source, server.user, free_port())
    assert code == 1
    assert "refused" in lines[0]


@pytest.mark.thorough
def test_inject_runs_before_the_statement_that_failed_and_skip_and_replace_in_its_place(
    mysql_source: Run, rig: SourceRig, followed: SqlServer
) -> None:
    server = followed
    source = rig.make(server)
    here = "--status-addr", source.address
    code, printed = mysql_source("status", *here)
    assert (code, "no source answers" in printed) == (1, True)
    source.start()
    server.run(
        "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)",
        "INSERT INTO shop.t VALUES (1)",
    )  # fmt: skip
    source.catch_up(server)
    code, printed = mysql_source("inject", "TRUNCATE TABLE shop.t", *here)
    assert (code, "no statement has failed" in printed) == (2, True)
    server.run(
        "SET SESSION sql_log_bin = 0", "ALTER TABLE shop.t ADD COLUMN a INT",
        "SET SESSION sql_log_bin = 1", "ALTER TABLE shop.t ADD COLUMN b INT AFTER a",
        "INSERT INTO shop.t VALUES (2, 20, 200)",
    )  # fmt: skip
    place = source.fails()["statement"]
    code, printed = as_process("inject", "ALTER TABLE shop.t ADD COLUMN a INT", *here)
    assert (code, printed) == (0, f"source {source.address}:\ninject at {place}: noted\n")
    source.catch_up(server)
    source.kill()  # What was decided stands, and is not done twice.
    source.start()
    server.run(
        "SET SESSION sql_log_bin = 0", "ALTER TABLE shop.t ADD COLUMN c INT",
        "SET SESSION sql_log_bin = 1", "ALTER TABLE shop.t DROP COLUMN c",
    )  # fmt: skip
    place = source.fails()["statement"]
    printed = mysql_source("skip", *here, "-o", "json")[1]
    assert json.loads(printed) == {
        "source": source.address,
        "messages": [f"skip at {place}: noted"],
    }
    source.catch_up(server)
    server.run("SET SESSION binlog_format = 'STATEMENT'", "DELETE FROM shop.t WHERE id = 1")
    source.fails()
    assert mysql_source("replace", "ALTER TABLE shop.t COMMENT 'by hand'", *here)[0] == 0
    server.run("UPDATE shop.t SET b = 201")
    source.catch_up(server)
    code, printed = mysql_source("status", *here, "--output", "json")
    assert (code, json.loads(printed)["state"]) == (0, "syncing")
    code, printed = mysql_source("status", *here)
    lines = dict(line.split(None, 1) for line in printed.splitlines())
    assert (code, lines["state"]) == (0, "syncing")
    assert lines.keys() == {"source", "state", "lag", "rate", "server", "checkpoint", "left"}
    assert "followed, without some changes" in lines["left"]
    assert source.stop() == 0
    found = rig.downstream().rows("shop.t")
    assert found == [(1, None, None), (2, 20, 201)]
    assert rows_of(server, "shop.t") == [(2, 20, 201)]

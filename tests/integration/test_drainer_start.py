"""What stops a Drainer is said in one line before Spark takes its seconds, and Spark's own lines
are in a file and never in the Drainer's log."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from drainer.settings.config import SparkConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import open_sink
from drainer.spark.job import JAVA_OPTIONS
from drainer.spark.jvm import archive_in, options_for, use_java, write_archive
from penstock.cluster.node_registry import Registry
from penstock.errors import NeedsOperator
from tests.kit.servers.fix_drainer import DrainerProcess
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication
from tests.kit.wait import eventually

_OURS = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (DEBUG|INFO|WARNING|ERROR) ")


def _refusal(drainer: DrainerProcess) -> str:
    """Return the one line with which it ends, without Spark and without a foreign line."""
    drainer.spawn()
    eventually(lambda: not drainer.is_running, 60)
    assert drainer.stop() == 2
    lines = drainer.log_text().splitlines()
    if lines[-1].startswith("penstock drainer: "):  # The settings are wrong: there is no log yet.
        assert len(lines) == 1, lines
        return lines[0]
    assert all(_OURS.match(line) for line in lines), lines
    assert len([line for line in lines if " ERROR " in line]) == 1, lines
    assert not (drainer.data_dir / "spark.log").exists(), "Spark was started"
    return lines[-1]


@pytest.mark.main_case("no sink for")
@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ("oracle://x/", "no sink for downstream scheme 'oracle'"),
        ("kafka://x/?format=xml", "format"),
        ("sqlite:///{tmp}/file/down.db", "cannot be used: its folder"),
        ("sqlite:///{tmp}", "cannot be used: it is no file"),
        ("sqlite:///{tmp}/file", "file is not a database"),
        ("mysql://root:x@127.0.0.1:1/?password-file={tmp}/none", "a password and a password-file"),
        ("mysql://root@127.0.0.1:1/?password-file={tmp}/none", "cannot read the password-file"),
    ],
)
def test_a_downstream_that_cannot_be_is_refused_before_spark_starts(
    replication: Replication, tmp_path: Path, sink: str, problem: str
) -> None:
    (tmp_path / "file").write_text("this is not a database of SQLite, and much too long to be one")
    url = sink.format(tmp=tmp_path)
    drainer = replication.drain_into(url, started=False)
    assert problem in _refusal(drainer)


def test_what_tidb_binlog_left_half_applied_is_refused_before_spark_starts(
    replication: Replication,
) -> None:
    cluster_id = Registry(replication.etcd).cluster_id()
    with closing(open_sink(replication.sink, cluster_id=cluster_id)) as sink:
        sink.load_checkpoint()
        sink.save_checkpoint(Checkpoint(5, 1))
    with closing(sqlite3.connect(replication.path)) as connection, connection:
        text = '{"consistent":false,"commitTS":414529105591271429,"ts-map":{}}'
        connection.execute(f"UPDATE `tidb_binlog.checkpoint` SET checkPoint = '{text}'")
    problem = _refusal(replication.add_drainer(started=False))
    assert "checkpoint is at 414529105591271429, did not end in order" in problem
    assert "pause-drainer" in problem


def test_an_account_s_password_and_rights_are_checked_before_spark_starts(
    replication: Replication, mariadb: MariadbServer
) -> None:
    mariadb.run(
        "CREATE DATABASE IF NOT EXISTS tidb_binlog",
        "CREATE OR REPLACE USER reader@'%' IDENTIFIED BY 'secret'",
        "GRANT ALL ON tidb_binlog.* TO reader@'%'",
        "GRANT SELECT, INSERT ON *.* TO reader@'%'",
    )
    for password, problem in (("wrong", "Access denied"), ("secret", "no right to UPDATE, DELETE")):
        url = f"mysql://reader:{password}@127.0.0.1:{mariadb.port}/"
        drainer = replication.drain_into(url, started=False)
        refusal = _refusal(drainer)
        assert problem in refusal
        assert "secret" not in refusal
    mariadb.run("DROP USER reader@'%'")


@pytest.mark.thorough
def test_what_spark_s_jvm_says_about_its_end_is_in_a_file_and_one_line_names_it(
    replication: Replication,
) -> None:
    drainer = replication.add_drainer(spark_conf="spark.driver.memory=1k")
    said = drainer.wait_for(r"the JVM ended at its start.*")[0]
    assert "Too small" in said
    assert str(drainer.data_dir / "spark.log") in said
    drainer.stop()
    assert all(_OURS.match(line) for line in drainer.log_text().splitlines())
    assert "Too small" in (drainer.data_dir / "spark.log").read_text()


@pytest.mark.slow
def test_a_jvm_that_is_killed_leaves_no_foreign_line_in_the_log(replication: Replication) -> None:
    drainer = replication.add_drainer(spark_tasks=1)
    drainer.wait_for("1 in all", 120)
    jvm = next(child for child in drainer.children() if "java" in child.name())
    jvm.kill()
    drainer.wait_for(r"the Spark JVM has ended(.|\n)*Spark task 0 is connected", 120)
    assert drainer.stop() == 0
    assert all(_OURS.match(line) for line in drainer.log_text().splitlines()), drainer.log_text()


@pytest.mark.main_case("master")
@pytest.mark.parametrize(
    ("field", "value"), [("master", "locl[2]"), ("conf", ("spark.ui.enabled",))]
)
def test_spark_s_settings_are_checked_when_they_are_read(field: str, value: Any) -> None:
    with pytest.raises(NeedsOperator, match=field.partition("_")[0]):
        SparkConfig(**{field: value})


@pytest.mark.thorough
def test_an_archive_of_classes_is_used_once_it_is_there(tmp_path: Path) -> None:
    archive = tmp_path / "spark-classes.jsa"
    assert not options_for(archive)
    archive.touch()
    assert str(archive) in options_for(archive)


@pytest.mark.thorough
@pytest.mark.spark
def test_the_process_that_writes_the_archive_ends_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(use_java(tmp_path / "java")))
    java_home = os.environ["JAVA_HOME"]
    written = archive_in(tmp_path, java_home)
    with write_archive(written, JAVA_OPTIONS) as process:
        assert process.wait() == 0
    options = f"{JAVA_OPTIONS} {options_for(written)} -Xlog:cds=info".split()
    tried = subprocess.run(
        [f"{java_home}/bin/java", *options, "-version"], capture_output=True, text=True, check=True
    )
    assert "Mapped dynamic" in tried.stdout, tried.stdout
    # A data-dir may be moved, where Java 19 and later would not find the base of the archive.
    assert archive_in(tmp_path / "moved", java_home).name != written.name


_WRITES = """
import sys, time
from pathlib import Path
from drainer.spark.job import JAVA_OPTIONS
from drainer.spark.jvm import write_archive
print(write_archive(Path(sys.argv[1]) / "classes.jsa", JAVA_OPTIONS).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.fault(
    "a Drainer is killed while a JVM of its own writes the class archive",
    "that JVM ends too",
    cases="1",
)
@pytest.mark.thorough
@pytest.mark.spark
def test_a_drainer_that_is_killed_leaves_no_jvm_that_writes_the_archive(tmp_path: Path) -> None:
    (tmp_path / "spark").mkdir()
    environment = {**os.environ, "JAVA_HOME": str(use_java(tmp_path / "java"))}
    drainer = subprocess.Popen(
        [sys.executable, "-c", _WRITES, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    )
    assert drainer.stdout is not None
    with drainer.stdout:
        group = int(drainer.stdout.readline())
    eventually(lambda: "java" in members(group), 60)
    drainer.kill()
    drainer.wait()
    eventually(lambda: not members(group), 20)


def members(group: int) -> list[str]:
    """Return the names of the processes of a group that still run."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(each.pid) == group and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each.name())
    return found

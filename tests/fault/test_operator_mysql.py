"""An operator at a real source of a real MariaDB, with Pumps and a Drainer, under load.

Every row is inserted once, and changed at most once by a session with MINIMAL images, which no
source can follow. So what is missing downstream can be counted from the two sides' rows, and must
be what `penstock source status` says of each table, but for one whose reload was ended.
"""

import random
import re
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import pymysql
import pytest

from penstock.errors import NeedsOperator
from penstock.local.etcd import EtcdServer
from pumpclient import PumpClient
from pumpclient.mysql.source.__main__ import main as mysql_source
from tests.kit.servers.binlog_server import run_until_done
from tests.kit.servers.fix_drainer import DrainerFactory, DrainerProcess
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_source import LONG_S, SourceProcess

pytestmark = [pytest.mark.fault, pytest.mark.thorough]

TABLES = ("a", "b", "c")
_REFUSED = re.compile(r"`?(shop)`?\.`?([abc])`? MODIFY COLUMN `?(h\d+)")


class RealSource:
    """A MariaDB that two sessions write to, its source, and what an operator does."""

    def __init__(
        self, url: str, server: MariadbServer, source: SourceProcess, pumps: list[PumpProcess]
    ) -> None:
        self.typed: list[str] = []
        self._server, self._source, self._pumps = server, source, pumps
        self._stopping = threading.Event()
        self._writers = [threading.Thread(target=self._write, args=(n,)) for n in range(2)]
        self._hidden = 0
        self._config = source.log.with_name("operator.toml")
        self._config.write_text(
            f'source-id = "db-1"\netcd-urls = "{url}"\nstatus-addr = "{source.address}"\n'
        )

    def __enter__(self) -> Self:
        self._server.run("CREATE DATABASE shop")
        for name in TABLES:
            self._server.run(f"CREATE TABLE shop.{name} (id INT PRIMARY KEY, v INT NOT NULL)")
        for writer in self._writers:
            writer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop_writing()
        self._source.stop()

    def _stop_writing(self) -> None:
        self._stopping.set()
        for writer in self._writers:
            writer.join()

    def _write(self, number: int) -> None:
        """Insert rows into one table or two, in transactions, with keys that come once."""
        draw, key = random.Random(number), number
        while not self._stopping.wait(0.02):
            key += len(self._writers)
            names = draw.sample(TABLES, draw.randint(1, 2))
            rows = [f"INSERT INTO shop.{name} (id, v) VALUES ({key}, 0)" for name in names]
            run_until_done(self._server, "BEGIN", *rows, "COMMIT")

    # --- what goes wrong, and what is done about it --------------------------------------------

    def trouble(self, chance: random.Random) -> None:
        act, name = chance.choice(("minimal", "minimal", "hidden", "swap", "rotate")), _any(chance)
        self.typed.append(f"{act} {name}")
        if act == "minimal":
            run_until_done(
                self._server,
                "SET SESSION binlog_row_image = MINIMAL",
                f"UPDATE shop.{name} SET v = 1 WHERE v = 0 ORDER BY id DESC LIMIT 3",
            )
        elif act == "hidden":
            self._hidden += 1
            column = f"h{self._hidden}"
            run_until_done(
                self._server,
                "SET SESSION sql_log_bin = 0",
                f"ALTER TABLE shop.{name} ADD COLUMN {column} INT",
                "SET SESSION sql_log_bin = 1",
                f"ALTER TABLE shop.{name} MODIFY COLUMN {column} BIGINT",
            )
        elif act == "swap":
            one, two = chance.sample(TABLES, 2)
            pairs = f"shop.{one} TO shop.tmp, shop.{two} TO shop.{one}, shop.tmp TO shop.{two}"
            run_until_done(self._server, f"RENAME TABLE {pairs}")
        else:
            self._server.run("FLUSH BINARY LOGS")

    def command(self, chance: random.Random) -> None:
        """Type a command, wise or not."""
        table = f"shop.{_any(chance)}"
        file, position = self._server.end()
        place = f"{file}:{position}"
        commands: list[Sequence[str]] = [
            ("status",), ("pause",), ("resume",), ("resume",), ("skip",), ("skip",),
            ("skip", "--at", place), ("skip-table", table), ("reload", table), ("reload", table),
            ("revoke", table), ("revoke", table, "--accept-gap"), ("revoke", place),
            ("purge", "inactive"), self._made_up_for("inject", "INT"),
            self._made_up_for("replace", "BIGINT"),
        ]  # fmt: skip
        self.ask(*chance.choice(commands))

    def _made_up_for(self, verb: str, column_type: str) -> tuple[str, ...]:
        """Return what makes of a table what the refused statement takes for granted."""
        found = _REFUSED.search(self._source.status().get("problem", ""))
        if found is None:
            return verb, "ALTER TABLE shop.a COMMENT 'x'"
        schema, table, column = found.groups()
        return verb, f"ALTER TABLE {schema}.{table} ADD COLUMN {column} {column_type}"

    def fault(self, chance: random.Random) -> None:
        act, pump = chance.choice(("kill", "stop", "start", "start", "pump")), self._pumps[-1]
        self.typed.append(act)
        if act == "pump":
            pump.kill()
            pump.spawn()
        elif act == "start":
            self._start()
        else:
            getattr(self._source, act)()

    def ask(self, *argv: str) -> int:
        """Run a command of `penstock source`; it is done, or refused in words."""
        code = mysql_source([*argv, "--config", str(self._config)])
        self.typed.append(f"{' '.join(argv)} -> {code}")
        assert code in (0, 1, 2), self.typed
        return code

    def _start(self) -> None:
        if not self._source.is_running:
            self._source.start()

    # --- the end -------------------------------------------------------------------------------

    def finish(self) -> dict[str, Any]:
        """Have whatever is refused left out until all is read; return what was left out."""
        self._stop_writing()
        for pump in self._pumps:
            if not pump.is_running:
                pump.start()
        self._start()
        self._server.run("CREATE DATABASE IF NOT EXISTS at_the_end")
        deadline_s = time.monotonic() + 2 * LONG_S
        while True:
            assert time.monotonic() < deadline_s, (self.typed, self._source.status())
            status = self._source.status()
            reloads = [
                table
                for table, each in status.get("left_out", {}).items()
                if each["reload"] and each["reload"]["state"] == "failed"
            ]
            if status.get("state") == "failed":
                self._decide(status)
            elif status.get("state") == "paused":
                self.ask("resume")
            elif reloads:
                self.ask("reload", reloads[0])
            elif self._is_done(status):
                return dict(status["left_out"])
            time.sleep(0.05)

    def _is_done(self, status: dict[str, Any]) -> bool:
        if not status or any(each["reload"] for each in status["left_out"].values()):
            return False
        try:
            return self._source.has(self._server)
        except (pymysql.err.Error, NeedsOperator):  # It has stopped since it was asked.
            return False

    def _decide(self, status: dict[str, Any]) -> None:
        """Take back what does not help, or else leave a table out, or what is refused."""
        offered = [each.partition(": ")[0].split()[1:] for each in status["overrides"]]
        assert offered, (status, self.typed)
        found = [words for words in offered if words[0] in ("revoke", "skip-table")]
        self.ask(*(found[0] if found else ["skip"]))

    def judge(self, down: Path, left_out: dict[str, Any]) -> None:
        """Hold what is missing downstream, table by table, against the figures."""
        for name in TABLES:
            wanted = dict(self._server.query(f"SELECT id, v FROM shop.{name}"))
            held = _held(down, f"shop.{name}")
            assert held.keys() <= wanted.keys(), (name, self.typed)
            missing = sum(v - held[key] if key in held else 1 + v for key, v in wanted.items())
            found = left_out.get(f"shop.{name}", {"rows": 0, "events": 0, "is_partial": False})
            if found["is_partial"]:
                continue  # It says so, and nothing but a reload takes it back.
            counted = found["rows"], found["events"]
            assert counted == (missing, 0), (name, left_out, self.typed)


def _held(down: Path, name: str) -> dict[int, int]:
    """Return v by id of a table downstream; nothing of one that was left out from its creation."""
    with closing(sqlite3.connect(down)) as connection:
        found = "SELECT count(*) FROM sqlite_master WHERE name = ?"
        if not connection.execute(found, (name,)).fetchone()[0]:
            return {}
        return dict(connection.execute(f'SELECT id, v FROM "{name}"'))


def _any(chance: random.Random) -> str:
    return chance.choice(TABLES)


@pytest.mark.fault(
    "an operator types any command at any node at any moment: at a source of a MySQL or"
    " MariaDB: every command of `penstock source`, also senseless ones, kills before any of"
    " its calls to the world, while a server does what no source can follow"
)
@pytest.mark.parametrize(
    ("seed", "steps"), [(1, 8), *(pytest.param(n, 25, marks=pytest.mark.slow) for n in range(2, 6))]
)
def test_what_an_operator_at_a_real_source_leaves_out_is_exactly_what_is_counted(
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    mariadb_binlog: MariadbServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    seed: int,
    steps: int,
) -> None:
    server, url, chance = mariadb_binlog, etcd_server.url, random.Random(seed)
    down = tmp_path / "down.db"
    server.drop_user_databases()
    server.run("RESET MASTER")
    pumps = [pump_factory(url) for _ in range(2)]
    drainer: DrainerProcess = drainer_factory(url, f"sqlite:///{down}", started=False)
    drainer.spawn()
    source = SourceProcess(tmp_path / "source", url, server).start()
    with RealSource(url, server, source, pumps) as real:
        for _ in range(steps):
            act = chance.choice(
                (real.trouble, real.trouble, real.command, real.command, real.fault)
            )
            act(chance)
            time.sleep(chance.random())  # Any moment of what that has begun.
        left_out = real.finish()
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err, real.typed
        with PumpClient.connect(url) as client:
            drainer.wait_until(client.session.oracle.get_ts())
        real.judge(down, left_out)

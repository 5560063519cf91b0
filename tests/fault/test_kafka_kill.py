"""A Drainer that writes to Kafka and dies, brokers that die, and twins: each change once.

Each run is a process of its own that ends by SIGKILL. After every one a reader with read_committed
sees the bank's ledger up to the checkpoint: each row change once, and commit_ts never falls within
a partition (`tests.kit.kafka.topic_reader` asserts that).

Tests whose names begin with `test_a_round` are sweeps, of `PENSTOCK_ROUNDS` rounds (2) from
`PENSTOCK_FIRST_ROUND` (1) on. The number of a round is its seed and stands in the name of its test:
a sweep that was cut off continues there, and a round that failed runs again.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from drainer.sinks.checkpoint import Checkpoint, Overridden
from drainer.sinks.protocol import Refused
from drainer.task.events.messages import Message, Messages
from penstock.errors import NeedsOperator, Retryable
from penstock.local.kafka import KafkaSecurity, KafkaServer
from penstock.pb import binlog_pb2
from tests.kit.crash.forked_drainers import SETTLED, ForkedDrainers
from tests.kit.fakes.local_drainer import CLUSTER, Way, run_drainer
from tests.kit.kafka.topic_reader import Read, done, read_topics
from tests.kit.opened_sinks import open_event_sink
from tests.kit.servers.authority import Authority
from tests.kit.workloads.bank import Bank
from tests.kit.workloads.sink_stream import InsertStream

pytestmark = [pytest.mark.fault, pytest.mark.slow]

KILLED = -9
STEPS = {"drainer.transaction_begun", "drainer.rows_changed", "drainer.checkpoint_stored",
         "drainer.transaction_committed", "drainer.ddl_run"}  # fmt: skip
LEDGER = {"seed": 5, "transactions": 40, "large_each": 20}
FIRST_ROUND = int(os.environ.get("PENSTOCK_FIRST_ROUND", "1"))
ROUNDS = range(FIRST_ROUND, FIRST_ROUND + int(os.environ.get("PENSTOCK_ROUNDS", "2")))


def url_of(
    server: KafkaServer, prefix: str, options: str = "format=canal-json", partition: str = "key"
) -> str:
    return f"kafka://{server.address}/?prefix={prefix}&partitions=3&partition={partition}&{options}"


def stored_ts(url: str) -> int:
    with closing(open_event_sink(url, cluster_id=CLUSTER, retry_s_max=60)) as sink:
        found = sink.load_checkpoint()
    return 0 if found is None else found.commit_ts


Row = dict[str, str]


def replayed(found: list[Read]) -> tuple[dict[str, Row], Counter[tuple[str, ...]]]:
    """Return the accounts by id, and the entries, that canal-json messages leave.

    Asserts that each change meets the row that the one before it has left.
    """
    accounts: dict[str, Row] = {}
    entries: Counter[tuple[str, ...]] = Counter()
    for each in found:
        message = each.json
        if message["isDdl"] or message["type"] == "TIDB_WATERMARK":
            continue
        (row,), kind = message["data"], message["type"]
        old = row if kind == "DELETE" else (message["old"] or [None])[0]
        if message["table"] == "account":
            there = accounts.pop((old or row)["id"], None)
            assert (there is None) == (kind == "INSERT"), f"{message} is there twice"
            assert there is None or there.items() <= old.items(), f"before {message} one is missing"
            if kind != "DELETE":
                accounts[row["id"]] = row
        elif message["table"] == "entry":
            if old is not None:
                entries[tuple(old.values())[:2]] -= 1
            if kind != "DELETE":
                entries[tuple(row.values())[:2]] += 1
    return accounts, +entries


class Ledger:
    """Where runs write to, and what readers must see there."""

    def __init__(
        self, server: KafkaServer, prefix: str, folder: Path, *, seed: int = LEDGER["seed"]
    ) -> None:
        self.server, self.prefix = server, prefix
        self.made_of = LEDGER | {"seed": seed}
        self.bank = Bank(**self.made_of)
        self.url = url_of(server, prefix, partition=("one", "table", "key")[seed % 3])
        self.way = Way(url=self.url, folder=folder, strategy="events", bytes_max=20_000)
        binlogs = [(ts, binlog_pb2.Binlog.FromString(data)) for ts, data in self.bank.binlogs]
        self._begun = {
            ts: binlog.start_ts for ts, binlog in binlogs if binlog.tp != binlog_pb2.Rollback
        }

    def check(self) -> int:
        """Assert that readers see the ledger up to the checkpoint, once; return that."""
        through_ts = stored_ts(self.url)
        found = read_topics(self.server.address, self.prefix)
        changes = [each for each in found if each.json["type"] != "TIDB_WATERMARK"]
        assert {each.commit_ts for each in changes} == {
            ts for ts in self._begun if ts <= through_ts
        }
        begun = {
            each.commit_ts: int(each.headers["penstock.start_ts"])
            for each in changes if not each.json["isDdl"]
        }  # fmt: skip
        assert begun.items() <= self._begun.items()
        accounts, entries = replayed(found)
        state = self.bank.state_at(through_ts)
        assert {
            (int(row["id"]), row["owner"], int(row["balance"])) for row in accounts.values()
        } == state.accounts
        assert entries == Counter(
            {tuple(map(str, entry)): count for entry, count in state.entries.items()}
        )
        return through_ts


class Running:
    """A Drainer in a thread, slow enough for something to happen to it."""

    def __init__(self, ledger: Ledger, folder: Path, *, pause_s: float) -> None:
        self.failure: Exception | None = None
        way = replace(ledger.way, folder=folder, rows_max=10, pause_s=pause_s)
        bank = Bank(**ledger.made_of)
        self._thread = threading.Thread(target=self._run, args=(bank, way), daemon=True)
        self._thread.start()

    def _run(self, bank: Bank, way: Way) -> None:
        while True:
            try:
                assert asyncio.run(run_drainer(bank, way)).commit_ts == bank.last_ts
                return
            except Overridden:  # The one before wrote on after this one had read: read again.
                continue
            except Exception as error:
                self.failure = error
                return

    def join(self) -> None:
        self._thread.join(180)
        assert not self._thread.is_alive()


_prefixes = iter(f"bank-{number}" for number in range(1000))


@pytest.fixture(scope="module")
def drainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedDrainers]:
    with ForkedDrainers(tmp_path_factory.mktemp("drainers") / "log") as made:
        yield made


@pytest.mark.fault(
    "the Drainer is killed at the begin, after the messages, after the checkpoint, after the"
    " commit, within a DDL",
    "what was not committed is ended by the next run, which continues at the checkpoint",
    cases="0 / 15",
)
def test_killed_at_every_step_readers_see_each_change_once(
    kafka: KafkaServer, drainers: ForkedDrainers, tmp_path: Path
) -> None:
    ledger = Ledger(kafka, next(_prefixes), tmp_path / "0")
    code, steps = drainers.run(ledger.way, bank=LEDGER)
    assert code == SETTLED
    assert ledger.check() == ledger.bank.last_ts
    assert steps.keys() >= STEPS
    for step in sorted(STEPS):
        ledger = Ledger(kafka, next(_prefixes), tmp_path / step)
        for passing in (1, 2, 3):
            code, _ = drainers.run(ledger.way, bank=LEDGER, kill_at={step: passing})
            assert code in (KILLED, SETTLED)
            ledger.check()
        assert drainers.run(ledger.way, bank=LEDGER)[0] == SETTLED
        assert ledger.check() == ledger.bank.last_ts


@pytest.mark.fault(
    "the broker is killed under load and comes back",
    "the Drainer waits, and looks a commit without an answer up",
    cases="0 / 3",
)
def test_a_broker_that_is_killed_and_comes_back_has_each_change_once(
    fresh_kafka: KafkaServer, tmp_path: Path
) -> None:
    ledger = Ledger(fresh_kafka, "bank", tmp_path / "drainer")
    run = Running(ledger, tmp_path / "drainer", pause_s=0.3)
    for _ in range(3):
        time.sleep(1.5)
        fresh_kafka.kill()
        time.sleep(0.5)
        fresh_kafka.start()
    run.join()
    assert run.failure is None
    assert ledger.check() == ledger.bank.last_ts


@pytest.fixture
def cleared(kafka: KafkaServer) -> Iterator[KafkaServer]:
    """The broker without the topics of the rounds before, which a sweep would fill it with."""
    yield kafka
    admin = AdminClient({"bootstrap.servers": kafka.address})
    rounds = [name for name in admin.list_topics(timeout=20).topics if name.startswith("round-")]
    if rounds:
        done(admin.delete_topics(rounds))


@pytest.mark.fault(
    "rounds of all these, by seed: the Drainer is killed at each step, at a random passing,"
    " and at a random moment; the broker once or twice at random; a twin begins at random;"
    " messages in one partition, by table, or by key",
    "the same",
    cases="0 / 2 of each, or as many as `PENSTOCK_ROUNDS` says",
)
@pytest.mark.parametrize("seed", ROUNDS)
def test_a_round_of_kills_of_the_drainer(
    seed: int, cleared: KafkaServer, drainers: ForkedDrainers, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    ledger = Ledger(cleared, f"round-of-kills-{seed}", tmp_path / "drainer", seed=seed)
    kills = [({step: chance.randint(1, 3)}, 0.0) for step in sorted(STEPS)]
    kills += [({}, chance.uniform(0.05, 1.5))]
    chance.shuffle(kills)
    for kill_at, after_s in kills:
        code, _ = drainers.run(
            ledger.way, bank=ledger.made_of, kill_at=kill_at, kill_after_s=after_s
        )
        assert code in (KILLED, SETTLED)
    ledger.check()
    assert drainers.run(ledger.way, bank=ledger.made_of)[0] == SETTLED
    assert ledger.check() == ledger.bank.last_ts


@pytest.fixture(scope="module")
def shared_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    server = KafkaServer(tmp_path_factory.mktemp("shared_kafka"))
    server.install()
    server.start()
    yield server
    server.kill()


@pytest.mark.kafka
@pytest.mark.parametrize("seed", ROUNDS)
def test_a_round_of_kills_of_the_broker(
    seed: int, shared_kafka: KafkaServer, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    ledger = Ledger(shared_kafka, f"round-{seed}", tmp_path / "drainer", seed=seed)
    run = Running(ledger, tmp_path / "drainer", pause_s=0.1)
    for _ in range(chance.randint(1, 2)):
        time.sleep(chance.uniform(0.05, 2.5))
        shared_kafka.kill()
        shared_kafka.start()
    run.join()
    assert run.failure is None
    assert ledger.check() == ledger.bank.last_ts


@pytest.mark.parametrize("seed", ROUNDS)
def test_a_round_of_twins(seed: int, cleared: KafkaServer, tmp_path: Path) -> None:
    chance = random.Random(seed)
    ledger = Ledger(cleared, f"round-of-twins-{seed}", tmp_path / "check", seed=seed)
    first = Running(ledger, tmp_path / "first", pause_s=0.05)
    time.sleep(chance.uniform(0.05, 2.0))
    second = Running(ledger, tmp_path / "second", pause_s=0.05)
    for each in (first, second):
        each.join()
        assert each.failure is None or "another Drainer" in str(each.failure), each.failure
    assert first.failure is None or second.failure is None
    assert ledger.check() == ledger.bank.last_ts


def test_kafkas_own_console_consumer_sees_each_change_once(
    kafka: KafkaServer, drainers: ForkedDrainers, tmp_path: Path
) -> None:
    ledger = Ledger(kafka, next(_prefixes), tmp_path)
    step = "drainer.checkpoint_stored"
    assert drainers.run(ledger.way, bank=LEDGER, kill_at={step: 3})[0] == KILLED
    assert drainers.run(ledger.way, bank=LEDGER)[0] == SETTLED
    topic = f"{ledger.prefix}.bank.account"
    ours = Counter(
        each.value for each in read_topics(kafka.address, ledger.prefix) if each.topic == topic
    )
    command = kafka.java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", kafka.address,
        "--topic", topic, "--from-beginning", "--isolation-level", "read_committed",
        "--timeout-ms", "8000",
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, check=False, timeout=90)
    assert Counter(done.stdout.splitlines()) == ours
    assert len(ours) > 20


def begun(url: str, **options: Any) -> tuple[InsertStream, Any]:
    stream = InsertStream()
    sink = open_event_sink(url, cluster_id=CLUSTER, **options)
    sink.load_checkpoint()
    stream.create(sink)
    return stream, sink


def put_again(stream: InsertStream, sink: Any, *ids: int) -> None:
    """Bring the transaction that was refused last, as a Drainer does when it is started again."""
    point = Checkpoint(commit_ts=stream.ts, schema_version=stream.catalog.version)
    sink.put(stream.messages(sink, stream.batch({point.commit_ts: list(ids)})), point)


@pytest.mark.fault(
    "a twin begins to write in the middle of a transaction",
    "the first is fenced and stops; its transaction is not there",
    cases="0 / 1",
)
def test_a_twin_is_fenced_in_the_middle_of_its_transaction(kafka: KafkaServer) -> None:
    prefix = next(_prefixes)
    url = url_of(kafka, prefix)
    stream, first = begun(url)
    second = open_event_sink(url, cluster_id=CLUSTER)
    second.load_checkpoint()
    point, later = stream.point(), stream.point()

    def slices() -> Any:
        yield from stream.messages(first, stream.batch({point.commit_ts: [1]}, is_slice=True))
        batch = stream.batch({later.commit_ts: [2]})
        second.put(stream.messages(second, batch), later)
        yield from stream.messages(first, stream.batch({point.commit_ts: [3]}, is_slice=True))

    with pytest.raises(NeedsOperator, match="another Drainer"):
        first.put_slices(slices, point)
    rows = [
        each.json["data"][0]["id"]
        for each in read_topics(kafka.address, prefix)
        if each.json["data"]
    ]
    assert rows == ["2"]
    first.close()
    second.close()


@pytest.mark.fault(
    "tries to connect, again and again",
    "each connection that is given up ends its threads",
    cases="2 / 3",
)
def test_connections_that_replace_each_other_leave_no_threads_behind(kafka: KafkaServer) -> None:
    url = url_of(kafka, next(_prefixes))
    stream, first = begun(url)
    gc.collect()
    gc.disable()  # It would end what a circle of references keeps, sooner or later.
    try:
        before = len(os.listdir("/proc/self/task"))
        for number in range(5):
            first.close()
            first = open_event_sink(url, cluster_id=CLUSTER)
            first.load_checkpoint()
            stream.put(first, number)
        assert len(os.listdir("/proc/self/task")) <= before
    finally:
        gc.enable()
        first.close()


def test_with_at_least_once_all_is_there_and_a_reader_may_see_it_twice(
    kafka: KafkaServer, drainers: ForkedDrainers, tmp_path: Path
) -> None:
    ledger = Ledger(kafka, next(_prefixes), tmp_path)
    way = Way(url=f"{ledger.url}&delivery=at-least-once", folder=tmp_path, strategy="events")
    step = "drainer.checkpoint_stored"
    drainers.run(way, bank=LEDGER, kill_at={step: 3})
    assert drainers.run(way, bank=LEDGER)[0] == SETTLED
    found = read_topics(kafka.address, ledger.prefix, isolation="read_uncommitted", may_repeat=True)
    assert ledger.bank.last_ts == max(each.commit_ts for each in found)


# --- brokers with TLS and passwords ------------------------------------------------------------


REAUTHENTICATED_S = 2
SCRAM = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.clients.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "listener.name.clients.scram-sha-256.connections.max.reauth.ms": REAUTHENTICATED_S * 1000,
}
"""A second mechanism, by which a client has to show its password again and again."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaServer, Authority]]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    pair = authority.issue("broker")
    security = KafkaSecurity(cert=pair.cert, key=pair.key, users={"alice": "se:cret"})
    server = KafkaServer(folder / "kafka", security=security, settings=SCRAM)
    server.install()
    server.start()
    yield server, authority
    server.kill()


def test_over_tls_with_a_password_from_a_file(
    secured: tuple[KafkaServer, Authority], tmp_path: Path
) -> None:
    server, authority = secured
    file = tmp_path / "password"
    file.write_text("se:cret\n")
    url = f"kafka://alice@{server.address}/?ssl-ca={authority.file}&password-file={file}"
    stream, sink = begun(url, retry_s_max=30)
    last = stream.put(sink, 7)
    sink.close()
    with closing(open_event_sink(url, cluster_id=CLUSTER)) as again:
        assert again.load_checkpoint() == last
    file.write_text("wrong\n")
    with closing(open_event_sink(url, cluster_id=CLUSTER, retry_s_max=30)) as refused:
        with pytest.raises(NeedsOperator, match="refuses the user or the password") as error:
            refused.load_checkpoint()
        assert "wrong" not in str(error.value)
        file.write_text("se:cret\n")  # The same sink, once it is mended.
        assert refused.load_checkpoint() == last


@pytest.mark.fault(
    "a password is rotated while it writes, and the broker asks for it again",
    "with the new one in the file it continues; before that it stops, and the batch that was"
    " refused is there once afterwards",
    cases="0 / 2",
)
def test_a_password_that_is_rotated_while_it_runs_costs_a_restart_at_most_and_no_row(
    secured: tuple[KafkaServer, Authority], tmp_path: Path
) -> None:
    server, authority = secured
    alice: dict[str, Any] = {
        "bootstrap.servers": server.address, "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.file), "sasl.mechanism": "PLAIN",
        "sasl.username": "alice", "sasl.password": "se:cret",
    }  # fmt: skip
    admin, file = AdminClient(alice), tmp_path / "password"

    def rotate(password: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        made = UserScramCredentialUpsertion("bob", info, password.encode())
        done(admin.alter_user_scram_credentials([made]))

    rotate("first")
    file.write_text("first\n")
    url = (f"kafka://bob@{server.address}/?ssl-ca={authority.file}&password-file={file}"
           "&sasl-mechanism=SCRAM-SHA-256&prefix=rotated")  # fmt: skip
    stream, sink = begun(url, retry_s_max=60)
    ids: list[int] = []

    def put_for(seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            ids.append(len(ids))
            stream.put(sink, ids[-1])

    rotate("second")
    file.write_text("second\n")
    put_for(3 * REAUTHENTICATED_S)
    rotate("third")
    with pytest.raises(NeedsOperator, match="refuses the user or the password"):
        put_for(30)
    file.write_text("third\n")
    put_again(stream, sink, ids[-1])
    sink.close()
    found = read_topics(server.address, "rotated", **alice)
    rows = [each.json["data"][0]["id"] for each in found if each.topic == "rotated.shop.t"]
    assert rows == [str(number) for number in ids]


@pytest.mark.fault(
    "a wrong password, a certificate of another authority, a topic that is missing, compacted"
    " or takes too little, a row above the limit",
    "one line with a hint, nothing of the batch is there",
    cases="0 / 7",
)
def test_a_certificate_of_another_authority_is_refused(
    secured: tuple[KafkaServer, Authority], tmp_path: Path
) -> None:
    server, _ = secured
    other = Authority(tmp_path, "other")
    url = f"kafka://alice:se%3Acret@{server.address}/?ssl-ca={other.file}"
    with (
        closing(open_event_sink(url, cluster_id=CLUSTER, retry_s_max=20)) as sink,
        pytest.raises(NeedsOperator, match="TLS towards Kafka"),
    ):
        sink.load_checkpoint()


# --- bad input ---------------------------------------------------------------------------------


def test_a_topic_that_is_missing_and_may_not_be_made_stops_before_anything(
    kafka: KafkaServer,
) -> None:
    url = url_of(kafka, next(_prefixes), "create-topics=false&checkpoint-topic=none")
    with pytest.raises(NeedsOperator, match="Kafka has no topic none"):
        begun(url)


def test_a_topic_of_rows_that_is_missing_stops_and_its_batch_goes_in_once_it_is_there(
    kafka: KafkaServer,
) -> None:
    prefix = next(_prefixes)
    stream, sink = begun(url_of(kafka, prefix))
    sink.close()
    name = f"{prefix}.shop.t"
    url = url_of(kafka, prefix, "create-topics=false")
    with closing(open_event_sink(url, cluster_id=CLUSTER)) as bound:
        bound.load_checkpoint()
        with pytest.raises(NeedsOperator, match=f"Kafka has no topic {name}"):
            stream.put(bound, 1)
        admin = AdminClient({"bootstrap.servers": kafka.address})
        done(admin.create_topics([NewTopic(name, 3, 1)]))
        put_again(stream, bound, 1)
    found = read_topics(kafka.address, prefix)
    assert [each.json["data"][0]["id"] for each in found if each.topic == name] == ["1"]


def test_a_row_above_the_limit_stops_with_its_key_and_nothing_of_its_batch_is_there(
    kafka: KafkaServer,
) -> None:
    prefix = next(_prefixes)
    stream, sink = begun(url_of(kafka, prefix, "max-message-bytes=1000"))
    before = stream.put(sink, 1)
    message = Message(b"x" * 2000, b'{"id":"2"}', f"{prefix}.shop.t/0")
    with pytest.raises(Refused, match=r"has 2010 bytes, and max-message-bytes is 1000"):
        sink.put([Messages.of([(stream.ts + 1, message)])], stream.point())
    sink.close()
    assert stored_ts(url_of(kafka, prefix)) == before.commit_ts
    found = read_topics(kafka.address, prefix)
    assert max(each.commit_ts for each in found) == before.commit_ts


def test_a_compacted_topic_takes_no_message_without_a_key(kafka: KafkaServer) -> None:
    prefix = next(_prefixes)
    admin = AdminClient({"bootstrap.servers": kafka.address})
    topic = NewTopic(f"{prefix}.shop.t", 1, 1, config={"cleanup.policy": "compact"})
    done(admin.create_topics([topic]))
    stream, sink = begun(url_of(kafka, prefix, "partition=table"))
    with pytest.raises(NeedsOperator, match=r"compacted|Kafka refuses a message"):
        stream.put(sink, 1)
    sink.close()


def test_brokers_that_are_away_are_waited_for_and_then_named() -> None:
    with (
        closing(open_event_sink("kafka://127.0.0.1:1/", cluster_id=1, retry_s_max=1)) as sink,
        pytest.raises(Retryable, match=r"Kafka at 127\.0\.0\.1:1"),
    ):
        sink.load_checkpoint()


def test_a_topic_that_takes_less_than_messages_may_be_is_refused(kafka: KafkaServer) -> None:
    prefix = next(_prefixes)
    stream, sink = begun(url_of(kafka, prefix))
    last = stream.put(sink, 1)
    sink.close()
    url = url_of(kafka, prefix, "max-message-bytes=5000000")
    with closing(open_event_sink(url, cluster_id=CLUSTER)) as larger:
        larger.load_checkpoint()
        with pytest.raises(NeedsOperator, match="takes messages of up to 1048588 bytes"):
            stream.put(larger, 2)
    assert stored_ts(url) == last.commit_ts

"""A Kafka with ACLs: the commands that a start prints are all that an output's account needs."""

import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from drainer.settings.targets import target_of
from penstock.errors import NeedsOperator
from penstock.local.kafka import KafkaSecurity, KafkaServer
from penstock.local.process import completed
from penstock.local.run.preflight import downstream_checks
from tests.kit.fakes.local_drainer import CLUSTER
from tests.kit.opened_sinks import open_event_sink
from tests.kit.servers.authority import Authority
from tests.kit.workloads.sink_stream import InsertStream

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
ADMIN = """security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
username="broker" password="broker";
ssl.truststore.type=PEM
ssl.truststore.location={}
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[KafkaServer, Authority]]:
    """A broker that permits to an account only what an ACL allows."""
    authority = Authority(tmp_path)
    pair = authority.issue("broker")
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The controllers' listener is without TLS; clients cannot come by it.
        "super.users": "User:broker;User:ANONYMOUS",
    }
    security = KafkaSecurity(cert=pair.cert, key=pair.key, users={"alice": "secret"})
    server = KafkaServer(tmp_path / "kafka", security=security, settings=settings)
    server.install()
    server.start()
    yield server, authority
    server.kill()


def test_an_account_without_rights_writes_after_the_printed_commands(
    guarded: tuple[KafkaServer, Authority], tmp_path: Path
) -> None:
    server, authority = guarded
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "admin").write_text(ADMIN.format(authority.file))
    url = f"kafka://alice@{server.address}/?prefix=shop&format=canal-json"
    url += f"&ssl-ca={authority.file}&password-file={tmp_path / 'password'}"
    with closing(open_event_sink(url, cluster_id=CLUSTER, retry_s_max=30)) as sink:
        sink.load_checkpoint()
        with pytest.raises(NeedsOperator, match="Kafka denies a right"):
            InsertStream().create(sink)
    (failed,) = [each for each in downstream_checks(target_of(url)) if not each.passed]
    for command in failed.fixes:
        words = shlex.split(command)[1:]
        program = server.java("org.apache.kafka.tools.AclCommand", *words)
        completed([*program, "--command-config", str(tmp_path / "admin")], timeout=120)
    assert all(each.passed for each in downstream_checks(target_of(url)))
    stream = InsertStream()
    with closing(open_event_sink(url, cluster_id=CLUSTER, retry_s_max=30)) as sink:
        sink.load_checkpoint()
        stream.create(sink)
        last = stream.put(sink, 7)
    with closing(open_event_sink(url, cluster_id=CLUSTER)) as again:
        assert again.load_checkpoint() == last

"""A real Pump on a small volume that fills up: what is refused, what continues, how it recovers."""

from pathlib import Path

import grpc
import pytest

from penstock.errors import NeedsOperator
from penstock.pb import penstock_pb2
from penstock.wire.binlog import Binlog
from penstock.wire.codec import decode_binlog, encode_binlog
from pumpclient import PumpClient
from tests.kit.crash.disks import Volume, small_volume
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.pump_session import PumpSession
from tests.kit.wait import eventually
from tests.kit.workloads.ledger import pull_until

pytestmark = pytest.mark.fault

MIB = 1 << 20
VOLUME_BYTES = 64 * MIB
ROWS = bytes(MIB)


def refusals(session: PumpSession, binlog: Binlog) -> list[tuple[int, str]]:
    payloads = [encode_binlog(binlog)]
    batch = penstock_pb2.WriteBatch(cluster_id=session.cluster_id, seq=1, payloads=payloads)
    (ack,) = session.batches.Write(iter([batch]), timeout=20)
    return [(refusal.code, refusal.message) for refusal in ack.refusals]


def pulled(session: PumpSession, until_ts: int) -> list[int]:
    found = pull_until(session.pump.addr, session.cluster_id, until_ts)
    return [commit_ts for commit_ts, payload in found if not decode_binlog(payload).is_fake]


def write_until_refused(session: PumpSession) -> list[int]:
    taken: list[int] = []
    while True:
        prewrite = session.prewrite(ROWS)
        refused = refusals(session, prewrite)
        if refused:
            ((code, message),) = refused
            assert code == penstock_pb2.Refusal.RESOURCE_EXHAUSTED
            assert message.startswith("no available space, available: ")
            return taken
        commit = session.commit(prewrite)
        session.write(commit)
        taken.append(commit.commit_ts)


@pytest.mark.fault("the reserve is reached (a fake volume, a full one)")
def test_a_full_volume_stops_writers_and_nothing_else_and_space_alone_brings_them_back(
    nodes: Nodes, tmp_path: Path
) -> None:
    with small_volume(tmp_path / "small", VOLUME_BYTES) as volume:
        pump = nodes.add_pump(data_dir=volume.path / "data", storage_segment_bytes_max=8 * MIB)
        session = nodes.session(pump)
        try:
            _fill_up_and_recover(session, volume, nodes.url)
        finally:
            pump.kill()


def _fill_up_and_recover(session: PumpSession, volume: Volume, etcd_url: str) -> None:
    pump = session.pump
    details = pump.status().details
    assert int(details["storage_stop_write_at_available_bytes"]) == VOLUME_BYTES // 4
    open_one = session.prewrite(b"open")
    session.write(open_one)

    # Down to the reserve, whose first half is for what ends transactions.
    taken = write_until_refused(session)
    assert len(taken) > 20
    code, text = session.refusal(session.prewrite(ROWS))
    assert (code, "no available space" in text) == (grpc.StatusCode.UNKNOWN, True)
    with (
        PumpClient.connect(etcd_url) as client,
        pytest.raises(NeedsOperator, match="out of space: pump-1"),
    ):
        client.write_binlog(session.prewrite(ROWS))
    last = session.commit(open_one)
    session.write(last)
    taken.append(last.commit_ts)
    assert pulled(session, taken[-1]) == taken

    # Not one byte left: pulls continue, the Pump is alive, and says why it takes nothing.
    volume.fill()
    refused = refusals(session, session.prewrite())
    assert refused[0][0] == penstock_pb2.Refusal.RESOURCE_EXHAUSTED
    assert pulled(session, taken[-1]) == taken
    assert pump.status().details["score"] == "0"
    pump.wait_for("no new transactions until there are more than")

    # Space again: no one has to notify the Pump.
    volume.resize(2 * VOLUME_BYTES)
    again = session.prewrite(ROWS)
    eventually(lambda: not refusals(session, again), 15)
    pump.wait_for("new transactions are taken again")
    commit = session.commit(again)
    session.write(commit)
    taken.append(commit.commit_ts)

    # And all of it is there after a crash on a volume that is full once more.
    volume.fill()
    pump.kill()
    volume.free()
    pump.start()
    assert pulled(session, taken[-1]) == taken

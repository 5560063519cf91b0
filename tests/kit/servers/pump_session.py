"""A writer and operator at one Pump, binlog by binlog, through both of its services."""

from typing import Any

import grpc
import pytest

from penstock.cluster.node_registry import Registry
from penstock.oracle.client import OracleClient
from penstock.pb import penstock_pb2_grpc, pump_pb2, pump_pb2_grpc
from penstock.security.tls import Tls, open_channel
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.node import CHANNEL_OPTIONS


class PumpSession:
    """One Pump, its cluster's clock and registry, and both services."""

    def __init__(self, etcd: Any, pump: PumpProcess, tls: Tls | None = None) -> None:
        self.pump = pump
        self.registry = Registry(etcd)
        self.cluster_id = self.registry.cluster_id()
        self.oracle = OracleClient(etcd, tls=tls)
        self.channel = open_channel(pump.addr, tls, CHANNEL_OPTIONS)
        self.compatible: Any = pump_pb2_grpc.PumpStub(self.channel)  # type: ignore[no-untyped-call]
        self.batches: Any = penstock_pb2_grpc.PumpStub(self.channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.channel.close()
        self.oracle.close()

    def write(self, binlog: Binlog | bytes, **request: Any) -> None:
        payload = binlog if isinstance(binlog, bytes) else encode_binlog(binlog)
        fields = {"clusterID": self.cluster_id, "payload": payload, **request}
        self.compatible.WriteBinlog(pump_pb2.WriteBinlogReq(**fields), timeout=20)

    def refusal(self, binlog: Binlog | bytes, **request: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self.write(binlog, **request)
        return caught.value.code(), caught.value.details()

    def prewrite(self, value: bytes = b"rows") -> Binlog:
        return Binlog(tp=BinlogType.PREWRITE, start_ts=self.oracle.get_ts(), prewrite_value=value)

    def commit(self, prewrite: Binlog) -> Binlog:
        return Binlog(
            tp=BinlogType.COMMIT, start_ts=prewrite.start_ts, commit_ts=self.oracle.get_ts()
        )

    def transaction(self, value: bytes = b"rows") -> Binlog:
        prewrite = self.prewrite(value)
        self.write(prewrite)
        commit = self.commit(prewrite)
        self.write(commit)
        return commit

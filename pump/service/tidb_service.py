"""TiDB service: `binlog.Pump`, as TiDB-Binlog's clients and Drainers call it, one binlog a call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc

from penstock.errors import PenstockError
from penstock.pb import binlog_pb2, pump_pb2
from pump.service.grpc_server import abort, parsed

if TYPE_CHECKING:
    from pump.service.admission import Admission
    from pump.service.group_commit import GroupCommit
    from pump.service.pull_binlogs import Pulls

_WRITTEN = pump_pb2.WriteBinlogResp().SerializeToString()


class TidbService:
    """The handlers of `binlog.Pump`."""

    def __init__(self, group_commit: GroupCommit, pulls: Pulls, admission: Admission) -> None:
        self._group_commit = group_commit
        self._pulls = pulls
        self._admission = admission

    def methods(self) -> dict[str, Any]:
        """Return the handlers by method name."""
        return {
            "WriteBinlog": grpc.unary_unary_rpc_method_handler(self.write_binlog),
            "PullBinlogs": grpc.unary_stream_rpc_method_handler(self.pull_binlogs),
        }

    async def write_binlog(self, data: bytes, context: Any) -> bytes:
        """Answer once the binlog is durable."""
        request = await parsed(context, pump_pb2.WriteBinlogReq, data)
        try:
            self._admission.check_cluster(request.clusterID, context.peer)
            record = self._admission.admit(request.payload)
            if record is not None:
                await self._group_commit.write([record])
        except (PenstockError, OSError) as error:
            await abort(context, error)
        return _WRITTEN

    async def pull_binlogs(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        """Stream merged binlogs after a commit_ts, one per message, until the Pump closes."""
        request = await parsed(context, pump_pb2.PullBinlogReq, data)
        try:
            self._admission.check_cluster(request.clusterID, context.peer)
            batches = self._pulls.batches(context.peer(), request.startFrom.offset)
            async with aclosing(batches):
                async for pulled in batches:
                    if pulled.large is not None:
                        payload = await self._pulls.whole(pulled.large)
                        yield _entity(pulled.large.commit_ts, payload)
                    for commit_ts, payload in zip(pulled.commit_ts, pulled.payloads, strict=True):
                        yield _entity(commit_ts, payload)
        except (PenstockError, OSError) as error:
            await abort(context, error)


def _entity(commit_ts: int, payload: bytes) -> bytes:
    meta = pump_pb2.Meta(startTs=binlog_pb2.Binlog.FromString(payload).start_ts, commitTs=commit_ts)
    return pump_pb2.PullBinlogResp(
        entity=pump_pb2.Entity(payload=payload, meta=meta)
    ).SerializeToString()

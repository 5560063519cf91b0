"""TiDB service: `binlog.Pump`, as TiDB-Binlog's clients and Drainers call it, one binlog a call.

`WriteBinlog` has a second handler, for our own server's fast path: `fast_writes.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc

from penstock.errors import PenstockError
from penstock.pb import pump_pb2
from pump.service.entities import encode_entities, encode_entity
from pump.service.fast_writes import WRITE_METHOD, WRITTEN
from pump.service.grpc_server import abort, parsed

if TYPE_CHECKING:
    from penstock.http2.unary import MessageBlock
    from pump.service.admission import Admission
    from pump.service.group_commit import GroupCommit
    from pump.service.pull_binlogs import Pulls

TIDB_SERVICE: Final = "binlog.Pump"


class TidbService:
    """The handlers of `binlog.Pump`."""

    def __init__(self, group_commit: GroupCommit, pulls: Pulls, admission: Admission) -> None:
        self._group_commit = group_commit
        self._pulls = pulls
        self._admission = admission

    def methods(self) -> dict[str, Any]:
        return {
            WRITE_METHOD: grpc.unary_unary_rpc_method_handler(self.write_binlog),
            "PullBinlogs": grpc.unary_stream_rpc_method_handler(self.pull_binlogs),
        }

    async def write_binlog(self, data: bytes, context: Any) -> bytes:
        """Answer once the binlog is durable."""
        try:
            record = self._admission.admit_request(data, context)
            if record is not None:
                await self._group_commit.write([record])
        except (PenstockError, OSError) as error:
            await abort(context, error)
        return WRITTEN.message

    async def pull_binlogs(self, data: bytes, context: Any) -> AsyncIterator[bytes | MessageBlock]:
        """Stream merged binlogs after a commit_ts, one per message, until the Pump closes.

        A server that accepts blocks of messages gets blocks.
        """
        request = await parsed(context, pump_pb2.PullBinlogReq, data)
        takes_blocks = getattr(context, "takes_message_blocks", False)
        try:
            self._admission.check_cluster(request.clusterID, context.peer)
            batches = self._pulls.batches(context.peer(), request.startFrom.offset)
            async with aclosing(batches):
                async for pulled in batches:
                    if (large := pulled.large) is not None:
                        payload = await self._pulls.whole(large)
                        yield encode_entity(large.chunk_list.start_ts, large.commit_ts, payload)
                        continue
                    block = encode_entities(pulled.commit_ts, pulled.prewrites, pulled.outcomes)
                    if takes_blocks:
                        yield block
                        continue
                    for message in block.messages():
                        yield message
        except (PenstockError, OSError) as error:
            await abort(context, error)

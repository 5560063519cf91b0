"""A TiDB cluster without a TiDB: PDs and stores behind real gRPC, which do what a test says.

PD and TiKV agree on `TidbCluster`: which regions there are, who leads them, and what became of each
transaction. A store checks where a question belongs before it answers, as TiKV does, so a client
that does not look again after a split or a move gets nothing but region errors.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import grpc

from penstock.pb import metapb_pb2, pdpb_pb2, pdpb_pb2_grpc, tikvpb_pb2, tikvpb_pb2_grpc
from penstock.ts import compose, physical_ms
from pump.tikv import memcomparable
from tests.kit.servers.authority import Pair

CLUSTER_ID = 7_200_000_000_000_000_007
FIRST_REGION = 10

Step: TypeAlias = tikvpb_pb2.RegionError | tikvpb_pb2.KvError | grpc.StatusCode | Callable[[], None]


@dataclass(slots=True)
class Fate:
    """What TiKV holds of one transaction at its primary key; neither of all three: nothing."""

    ttl_ms: int = 0
    commit_ts: int = 0
    is_rolled_back: bool = False
    is_async_commit: bool = False


@dataclass
class TidbCluster:
    """What all its servers know; closed by a `with`."""

    pds: int = 1
    stores: int = 2
    pair: Pair | None = None
    cluster_id: int = CLUSTER_ID
    fates: dict[tuple[bytes, int], Fate] = field(default_factory=dict)
    safe_point: int = 0
    ahead_ms: int = 0
    """By how much PD's time is ahead of this machine's."""
    pd_leader: int | None = 0
    """Which PD leads; None: an election is under way."""

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.regions = {
            FIRST_REGION: metapb_pb2.Region(
                id=FIRST_REGION,
                region_epoch=metapb_pb2.RegionEpoch(conf_ver=1, version=1),
                peers=[
                    metapb_pb2.Peer(id=100 + number, store_id=number)
                    for number in range(1, self.stores + 1)
                ],
            )
        }
        self.leaders: dict[int, int | None] = {FIRST_REGION: 1}
        """The store that leads each region."""
        self.named_leaders: dict[int, int | None] = {}
        """The store of which PD believes that it leads, where that is another one."""
        self._last_ts = 0
        self._opened = ExitStack()
        self.pd_servers = [ScriptedPdMember(self, number) for number in range(self.pds)]
        self.store_servers = {n: ScriptedStore(self, n) for n in range(1, self.stores + 1)}

    @property
    def url(self) -> str:
        return ",".join(pd.url for pd in self.pd_servers)

    def __enter__(self) -> Self:
        for server in (*self.pd_servers, *self.store_servers.values()):
            server.start()
            self._opened.callback(server.stop)
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def next_ts(self, count: int = 1) -> int:
        with self.lock:
            now_ts = compose(int(time.time() * 1000) + self.ahead_ms, 0)
            self._last_ts = max(self._last_ts, now_ts) + count
            return self._last_ts

    def region_of(self, encoded: bytes) -> metapb_pb2.Region:
        with self.lock:
            for region in self.regions.values():
                if region.start_key <= encoded and (not region.end_key or encoded < region.end_key):
                    return region
        raise AssertionError("the regions hold all keys")

    def split(self, at: bytes) -> None:
        """Split a region at a key; the new one has the keys from there on."""
        encoded = memcomparable(at)
        with self.lock:
            left = self.region_of(encoded)
            right = metapb_pb2.Region()
            right.CopyFrom(left)
            right.id = max(self.regions) + 1
            right.start_key = left.end_key = encoded
            left.region_epoch.version += 1
            right.region_epoch.version += 1
            self.regions[right.id] = right
            self.leaders[right.id] = self.leaders[left.id]

    def transfer(self, store: int | None, *, pd_knows: bool = True) -> None:
        """Let another store lead all regions, None: no store."""
        with self.lock:
            for region_id in self.regions:
                if not pd_knows:
                    self.named_leaders.setdefault(region_id, self.leaders[region_id])
                self.leaders[region_id] = store

    def asked(self) -> list[tikvpb_pb2.CheckTxnStatusRequest]:
        """Return all questions to all stores that were answered by what they are about."""
        return [each for store in self.store_servers.values() for each in list(store.answered)]


class _Server:
    """A gRPC server that can go away and come back, at another port if it is to."""

    def __init__(self, cluster: TidbCluster) -> None:
        self.cluster = cluster
        self.address = ""
        self._server: Any = None
        self.bind()

    def add_to(self, server: Any) -> None:
        raise NotImplementedError

    def bind(self, port: int = 0) -> None:
        """Take a port, a free one for 0."""
        options = [("grpc.so_reuseport", 0)]
        self._server = grpc.server(ThreadPoolExecutor(8), options=options)
        self.add_to(self._server)
        pair, address = self.cluster.pair, f"127.0.0.1:{port}"
        if pair is None:
            self.address = f"127.0.0.1:{self._server.add_insecure_port(address)}"
            return
        credentials = grpc.ssl_server_credentials(
            [(pair.key.read_bytes(), pair.cert.read_bytes())],
            pair.ca.read_bytes(),
            require_client_auth=True,
        )
        self.address = f"127.0.0.1:{self._server.add_secure_port(address, credentials)}"

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Go away; what is under way breaks."""
        self._server.stop(0).wait()

    def restart(self, *, same_port: bool) -> None:
        self.stop()
        self.bind(int(self.address.rpartition(":")[2]) if same_port else 0)
        self.start()


class ScriptedPdMember(_Server, pdpb_pb2_grpc.PDServicer):
    """One PD; those that do not lead know who does."""

    def __init__(self, cluster: TidbCluster, number: int) -> None:
        self._number = number
        self.calls: list[str] = []
        super().__init__(cluster)

    @property
    def url(self) -> str:
        """Its URL, as the members of a PD are named."""
        return f"{'http' if self.cluster.pair is None else 'https'}://{self.address}"

    def add_to(self, server: Any) -> None:
        pdpb_pb2_grpc.add_PDServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    def _header(self, method: str) -> pdpb_pb2.ResponseHeader:
        self.calls.append(method)
        header = pdpb_pb2.ResponseHeader(cluster_id=self.cluster.cluster_id)
        if method != "GetMembers" and self.cluster.pd_leader != self._number:
            header.error.type = pdpb_pb2.UNKNOWN
            header.error.message = "not the leader"
        return header

    def GetMembers(self, request: Any, context: Any) -> Any:  # noqa: N802
        members = [
            pdpb_pb2.Member(name=f"pd-{pd._number}", client_urls=[pd.url])
            for pd in self.cluster.pd_servers
        ]
        answer = pdpb_pb2.GetMembersResponse(header=self._header("GetMembers"), members=members)
        if self.cluster.pd_leader is not None:
            answer.leader.CopyFrom(members[self.cluster.pd_leader])
        return answer

    def Tso(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        for request in requests:
            header = self._header("Tso")
            if request.header.cluster_id != self.cluster.cluster_id:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "mismatch cluster id")
            ts = self.cluster.next_ts(request.count)
            stamp = pdpb_pb2.Timestamp(physical=physical_ms(ts), logical=ts & ((1 << 18) - 1))
            yield pdpb_pb2.TsoResponse(header=header, count=request.count, timestamp=stamp)

    def GetRegion(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = pdpb_pb2.GetRegionResponse(header=self._header("GetRegion"))
        with self.cluster.lock:
            region = self.cluster.region_of(request.region_key)
            answer.region.CopyFrom(region)
            named = self.cluster.named_leaders
            leader = named.get(region.id, self.cluster.leaders[region.id])
            for peer in region.peers:
                if peer.store_id == leader:
                    answer.leader.CopyFrom(peer)
        return answer

    def GetStore(self, request: Any, context: Any) -> Any:  # noqa: N802
        store = self.cluster.store_servers[request.store_id]
        found = metapb_pb2.Store(id=request.store_id, address=store.address)
        return pdpb_pb2.GetStoreResponse(header=self._header("GetStore"), store=found)

    def GetGCSafePoint(self, request: Any, context: Any) -> Any:  # noqa: N802
        header, safe_point = self._header("GetGCSafePoint"), self.cluster.safe_point
        return pdpb_pb2.GetGCSafePointResponse(header=header, safe_point=safe_point)


class ScriptedStore(_Server, tikvpb_pb2_grpc.TikvServicer):
    """One store; `steps` are taken one by one by the next questions, before it answers as TiKV."""

    def __init__(self, cluster: TidbCluster, number: int) -> None:
        self._number = number
        self.steps: deque[Step] = deque()
        self.questions = 0
        self.answered: list[tikvpb_pb2.CheckTxnStatusRequest] = []
        super().__init__(cluster)

    def add_to(self, server: Any) -> None:
        tikvpb_pb2_grpc.add_TikvServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    def KvCheckTxnStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.questions += 1
        step = self.steps.popleft() if self.steps else None
        answer = tikvpb_pb2.CheckTxnStatusResponse
        if isinstance(step, grpc.StatusCode):
            context.abort(step, "as the test says")
        if isinstance(step, tikvpb_pb2.RegionError):
            return answer(region_error=step)
        if isinstance(step, tikvpb_pb2.KvError):
            return answer(error=step)
        if step is not None:
            step()
        with self.cluster.lock:
            error = self._misplaced(request)
            if error is not None:
                return answer(region_error=error)
            self.answered.append(request)
            return self._answer(request)

    def _misplaced(self, request: Any) -> tikvpb_pb2.RegionError | None:
        context, cluster = request.context, self.cluster
        region = cluster.regions.get(context.region_id)
        if region is None:
            missing = tikvpb_pb2.RegionNotFound(region_id=context.region_id)
            return tikvpb_pb2.RegionError(message="no such region", region_not_found=missing)
        if context.peer.store_id != self._number:
            other = tikvpb_pb2.StoreNotMatch(
                request_store_id=context.peer.store_id, actual_store_id=self._number
            )
            return tikvpb_pb2.RegionError(message="another store", store_not_match=other)
        leader = cluster.leaders[region.id]
        if leader != self._number:
            peers = [peer for peer in region.peers if peer.store_id == leader]
            not_leader = tikvpb_pb2.NotLeader(
                region_id=region.id, leader=peers[0] if peers else None
            )
            return tikvpb_pb2.RegionError(message="not leader", not_leader=not_leader)
        if context.region_epoch != region.region_epoch:
            stale = tikvpb_pb2.EpochNotMatch(current_regions=cluster.regions.values())
            return tikvpb_pb2.RegionError(message="epoch", epoch_not_match=stale)
        if cluster.region_of(memcomparable(request.primary_key)) is not region:
            elsewhere = tikvpb_pb2.KeyNotInRegion(key=request.primary_key, region_id=region.id)
            return tikvpb_pb2.RegionError(message="not here", key_not_in_region=elsewhere)
        return None

    def _answer(self, request: Any) -> tikvpb_pb2.CheckTxnStatusResponse:
        answer, name = tikvpb_pb2.CheckTxnStatusResponse(), (request.primary_key, request.lock_ts)
        fate = self.cluster.fates.get(name, Fate())
        ends_ms = physical_ms(request.lock_ts) + fate.ttl_ms
        if fate.commit_ts:
            answer.commit_version = fate.commit_ts
        elif fate.is_rolled_back:
            answer.action = tikvpb_pb2.NoAction
        elif fate.ttl_ms and (fate.is_async_commit or ends_ms >= physical_ms(request.current_ts)):
            answer.lock_ttl = fate.ttl_ms
            answer.lock_info.lock_version = request.lock_ts
            answer.lock_info.use_async_commit = fate.is_async_commit
        elif fate.ttl_ms:
            answer.action = tikvpb_pb2.TTLExpireRollback
            self.cluster.fates[name] = Fate(is_rolled_back=True)
        elif request.rollback_if_not_exist:
            answer.action = tikvpb_pb2.LockNotExistRollback
            self.cluster.fates[name] = Fate(is_rolled_back=True)
        else:
            answer.error.txn_not_found.start_ts = request.lock_ts
            answer.error.txn_not_found.primary_key = request.primary_key
        return answer


def row_key(table_id: int, handle: int) -> bytes:
    """Return the key that TiDB gives to a row with a whole number as its handle."""
    sign = 1 << 63
    return b"t" + (table_id + sign).to_bytes(8) + b"_r" + (handle + sign).to_bytes(8)


def meta_key(name: bytes = b"DDLJobHistory") -> bytes:
    """Return a key as TiDB keeps its DDL jobs under."""
    return b"m" + memcomparable(name) + b"h" + memcomparable((7).to_bytes(8))

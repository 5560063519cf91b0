"""etcd for every node: a connection, Penstock's errors, pages of keys, watches and leases.

The `etcd3` package carries generated code that protobuf ≥ 4 refuses. We put stubs generated from
the same messages (`proto/etcd/*.proto`) where it looks for its own, before it is imported.

Its watcher spins while etcd is away and forgets its watches afterwards, so `Watch` replaces it:

    list the prefix at revision r ──> call back ──> stream changes from r + 1 ──> call back …
              ^                                                │ stream breaks
              └──────────────── wait, with back-off <──────────┘

No change is missed (the list shows its outcome), and every failure is `Retryable`. A long list of
keys is read page by page (`read_pages`), so that no answer and no list in memory is ever huge.
Calls, watches and leases share the connection's errors, and so one module.

The user of an etcd with `auth enable` comes from the environment of every program:

    PENSTOCK_ETCD_USER=penstock PENSTOCK_ETCD_PASSWORD=…

etcd answers Authenticate with a token, which each call carries as metadata. A token ends with the
member that made it, or with its time to live. Then a call is refused as UNAUTHENTICATED, a new
token is requested, and a unary call is retried. A stream breaks, and its owner reopens it.
"""

import importlib
import importlib.util
import ipaddress
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import grpc

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.pb.etcd import rpc_pb2, rpc_pb2_grpc
from penstock.security.refusal import etcd_refusal
from penstock.security.tls import NO_PROXY, Tls
from penstock.waiting import doubling

log = logging.getLogger(__name__)

EtcdClient = Any
"""An `etcd3.Etcd3Client`; the package has no types."""

_CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),  # A long DDL history is one answer.
    # A frozen member must not hold a watch indefinitely; etcd refuses pings closer than 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.lb_policy_name", "round_robin"),
    NO_PROXY,
]
_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_LOGIN_REFUSED = ("user name is empty", "authentication failed")
"""etcd's texts, as INVALID_ARGUMENT, for a call without a token, and for a wrong password."""
_AWAY = (
    grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,  # Another program than etcd answers.
)  # fmt: skip
AWAY_HINT = "start etcd, or correct etcd-urls"
"""The remedy for an etcd that does not answer, the same for every node, command and writer."""
_RETRY_S_MIN = 0.1
_RETRY_S_MAX = 1.0


class EtcdClosed(Retryable):
    """This client was closed; another client may work."""


def _install_stubs() -> ModuleType:
    name = "etcd3.etcdrpc"
    if name not in sys.modules and "etcd3" not in sys.modules:
        spec = importlib.util.spec_from_loader(name, loader=None)
        assert spec is not None
        stubs = importlib.util.module_from_spec(spec)
        for source in (rpc_pb2, rpc_pb2_grpc):
            public = {k: v for k, v in vars(source).items() if not k.startswith("_")}
            vars(stubs).update(public)
        sys.modules[name] = stubs
    return importlib.import_module("etcd3")


_etcd3 = _install_stubs()


class _TlsClient(_etcd3.Etcd3Client):  # type: ignore[misc,name-defined]
    """A client with credentials that `penstock.security.tls` has checked."""

    def __init__(self, tls: Tls, **settings: Any) -> None:
        self._credentials = tls.channel_credentials()
        super().__init__(ca_cert="", **settings)

    def _get_secure_creds(self, *files: object) -> grpc.ChannelCredentials:
        return self._credentials


def connect(
    urls: Sequence[str] | str, *, timeout_s: float = 5, tls: Tls | None = None
) -> EtcdClient:
    """Return a client for these endpoints ("host:port", "https://host:port", comma-separated).

    Connects lazily and reconnects automatically; each call takes at most `timeout_s` seconds. With
    several endpoints, calls rotate among those that answer. Endpoints at https:// are asked with
    `tls` (read now, not again; default: the system's CAs), and must all prove to be the first
    endpoint's host. Until one has answered, unsuitable certificates are NeedsOperator. Raises
    NeedsOperator for a malformed endpoint, Retryable for a host that cannot be resolved.
    """
    endpoints, with_tls = _endpoints(urls)
    target = "{}:{}".format(*endpoints[0]) if len(endpoints) == 1 else _addresses(endpoints)
    host, _, port = target.rpartition(":")
    settings: dict[str, Any] = {"host": host, "port": port, "timeout": timeout_s}
    if with_tls:
        # Several addresses are one target, so only one name can be checked.
        name = ("grpc.ssl_target_name_override", endpoints[0][0])
        tls = tls or Tls()
        client = _TlsClient(tls, **settings, grpc_options=[*_CHANNEL_OPTIONS, name])
    else:
        tls = None
        client = _etcd3.client(**settings, grpc_options=_CHANNEL_OPTIONS)
    addresses = [f"{host}:{port}" for host, port in endpoints]
    client.endpoints = ",".join(f"https://{each}" if with_tls else each for each in addresses)
    login = login_from(os.environ)
    if login is not None:
        own = Login(client.channel, *login, timeout_s)
        client.channel = grpc.intercept_channel(client.channel, own)
        client.kvstub = rpc_pb2_grpc.KVStub(client.channel)  # type: ignore[no-untyped-call]
        client.leasestub = rpc_pb2_grpc.LeaseStub(client.channel)  # type: ignore[no-untyped-call]
        client.maintenancestub = rpc_pb2_grpc.MaintenanceStub(client.channel)  # type: ignore[no-untyped-call]
    client.refusal = lambda: etcd_refusal(addresses, tls) if tls is not None else None
    client.has_answered = False
    return client


def _endpoints(urls: Sequence[str] | str) -> tuple[list[tuple[str, int]], bool]:
    parts = urls.split(",") if isinstance(urls, str) else urls
    found, schemes = [], set()
    for url in (part.strip() for part in parts):
        schemes.add(url.startswith("https://"))
        host, _, port = url.removeprefix("https://").removeprefix("http://").rpartition(":")
        port = port.rstrip("/")
        if not host or not port.isdecimal():
            raise NeedsOperator(
                f"etcd endpoint {url!r} is not host:port", "like 10.0.0.1:2379", Code.SETTING_VALUE
            )
        found.append((host, int(port)))
    if not found:
        raise NeedsOperator(
            "no etcd endpoint given", "give at least one, like 127.0.0.1:2379", Code.SETTING_VALUE
        )
    if len(schemes) > 1:
        raise NeedsOperator(
            "some etcd endpoints are https:// and some are not",
            "it is one or the other",
            Code.SETTING_VALUE,
        )
    return found, schemes == {True}


def _addresses(endpoints: Sequence[tuple[str, int]]) -> str:
    """Return one gRPC target for several addresses, which must be numeric and of one family.

    If a host has no IPv4 address, all are written as IPv6; an IPv4 address is mapped into it.
    """
    found = [(_address(host, port), port) for host, port in endpoints]
    if all(address.version == 4 for address, _ in found):
        return "ipv4:" + ",".join(f"{address}:{port}" for address, port in found)
    mapped = (
        (f"::ffff:{address}" if address.version == 4 else str(address), port)
        for address, port in found
    )
    return "ipv6:" + ",".join(f"[{address}]:{port}" for address, port in mapped)


def _address(host: str, port: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        answers = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError as error:
        problem = f"cannot resolve etcd host {host!r}: {error} ({AWAY_HINT})"
        raise Retryable(problem, Code.ETCD_AWAY) from error
    addresses = [ipaddress.ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers]
    return min(addresses, key=lambda address: address.version)


@contextmanager
def etcd_errors(etcd: EtcdClient = None) -> Iterator[None]:
    """Turn every etcd failure inside the block into Retryable.

    A refused login is NeedsOperator, since waiting does not cure it, and so are certificates at a
    start; a node that has had an answer keeps trying. The client's endpoints are named.
    """
    endpoints = getattr(etcd, "endpoints", "")
    where = f"etcd at {endpoints}" if endpoints else "etcd"
    try:
        yield
        if etcd is not None:
            etcd.has_answered = True
    except PenstockError:
        raise
    except grpc.RpcError as error:
        # A call that failed is also a grpc.Call, which has code and details.
        code = error.code()
        details = error.details() or ""
        if code in _REFUSALS or any(each in details for each in _LOGIN_REFUSED):
            raise NeedsOperator(f"{where} refused: {details}", HINT, Code.ETCD_REFUSES) from error
        hint = f" ({AWAY_HINT})" if code in _AWAY else ""
        raise _failed(etcd, f"{where} failed: {code.name}: {details}{hint}") from error
    except _etcd3.Etcd3Exception as error:
        hint = f" ({AWAY_HINT})" if type(error).__name__.startswith("Connection") else ""
        raise _failed(etcd, f"{where} failed: {error or type(error).__name__}{hint}") from error
    except ValueError as error:
        if "closed channel" not in str(error):
            raise
        raise EtcdClosed("this etcd client is closed", code=Code.CLOSED) from error


def _failed(etcd: EtcdClient, problem: str) -> PenstockError:
    refusal = None if etcd is None else etcd.refusal()
    if refusal is None:
        return Retryable(problem, Code.ETCD_AWAY)
    if not etcd.has_answered:
        return NeedsOperator(f"etcd: {refusal.problem}", refusal.hint, refusal.code)
    return Retryable(f"{problem}; {refusal}", Code.ETCD_AWAY)


_BAD_VERSION = re.compile(r"3\.5\.[012]\b")


def warn_of_version(etcd: EtcdClient) -> None:
    """Log a warning if the answering etcd is a release that loses writes; nothing if none answers.

    Members of etcd 3.5.0 to 3.5.2 that are killed under load may silently hold different data.
    """
    request = rpc_pb2.StatusRequest()
    with suppress(PenstockError), etcd_errors(etcd):
        answer = etcd.maintenancestub.Status(request, etcd.timeout, metadata=etcd.metadata)
        if is_bad(answer.version):
            text = "etcd %s can lose writes when a member is killed: use 3.5.3 or later"
            log.warning(text, answer.version)


def is_bad(version: str) -> bool:
    return _BAD_VERSION.match(version) is not None


def read(etcd: EtcdClient, key: str, *, timeout_s: float | None = None) -> bytes | None:
    """Return a key's value, None if it is absent; `Retryable` when etcd does not answer."""
    request = rpc_pb2.RangeRequest(key=key.encode())
    with etcd_errors(etcd):
        answer = etcd.kvstub.Range(request, timeout_s or etcd.timeout, metadata=etcd.metadata)
    return answer.kvs[0].value if answer.kvs else None


def read_at(etcd: EtcdClient, key: str) -> tuple[bytes | None, int, int]:
    """Return a key's value, its create revision and its last revision; None, 0, 0 if absent."""
    with etcd_errors(etcd):
        value, meta = etcd.get(key)
    return (None, 0, 0) if meta is None else (value, meta.create_revision, meta.mod_revision)


def put(etcd: EtcdClient, key: str, value: str, *, lease_id: int = 0, ttl_s: int = 0) -> None:
    """Write a key, which vanishes with its lease, or `ttl_s` from now."""
    with etcd_errors(etcd):
        etcd.put(key, value, lease=etcd.lease(ttl_s).id if ttl_s else lease_id or None)


def delete(etcd: EtcdClient, key: str) -> None:
    with etcd_errors(etcd):
        etcd.delete(key)


def revoke(etcd: EtcdClient, lease_id: int) -> None:
    with etcd_errors(etcd):
        etcd.revoke_lease(lease_id)


def transact(
    etcd: EtcdClient, compare: Sequence[Any], success: Sequence[Any], failure: Sequence[Any] = ()
) -> tuple[bool, Any]:
    """Run `success` if all of `compare` hold, otherwise `failure`; return which, and the answers.

    The comparisons and operations are those of `etcd.transactions`.
    """
    with etcd_errors(etcd):
        done, answers = etcd.transaction(
            compare=list(compare), success=list(success), failure=list(failure)
        )
    return bool(done), answers


def read_prefix(etcd: EtcdClient, prefix: str) -> tuple[dict[str, bytes], int]:
    """Return all keys below a prefix with their values, in key order, and the store's revision."""
    with etcd_errors(etcd):
        answer = etcd.get_prefix_response(prefix, sort_order="ascend")
        return {kv.key.decode(): kv.value for kv in answer.kvs}, answer.header.revision


class Watch:
    """A prefix of etcd kept in memory by a thread, through every outage until cancelled.

    `on_items` gets all keys and values below the prefix: once before the constructor returns (which
    raises Retryable when etcd is away), then after each change, from the watch's thread.
    """

    def __init__(
        self, etcd: EtcdClient, prefix: str, on_items: Callable[[dict[str, bytes]], None]
    ) -> None:
        self._etcd = etcd
        self._prefix = prefix
        self._on_items = on_items
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._call: Any = None
        self._items, revision = read_prefix(etcd, prefix)
        on_items(dict(self._items))
        self._thread = threading.Thread(
            target=self._run, args=(revision,), name=f"watch {prefix}", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """Cancel the watch; no callback runs after this returns."""
        self._stopped.set()
        with self._lock:
            if self._call is not None:
                self._call.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self, revision: int) -> None:
        try:
            while not self._stopped.is_set():
                self._follow(revision)
                revision = self._relist()
        except EtcdClosed:
            log.info("watch of %s ends with its etcd client", self._prefix)

    def _follow(self, revision: int) -> None:
        """Apply changes after `revision` until the stream breaks or the watch is cancelled."""
        stream_over = threading.Event()
        try:
            with etcd_errors(self._etcd):
                stub = rpc_pb2_grpc.WatchStub(self._etcd.channel)  # type: ignore[no-untyped-call]
                call = stub.Watch(
                    self._requests(revision + 1, stream_over),
                    # A member that is cut off from its leader then breaks the stream instead of
                    # going silent.
                    metadata=(("hasleader", "true"), *(self._etcd.metadata or ())),
                )
                with self._lock:
                    self._call = call
                    if self._stopped.is_set():
                        call.cancel()
                for answer in call:
                    if answer.canceled:
                        break
                    if answer.events:
                        self._apply(answer.events)
        except EtcdClosed:
            raise
        except PenstockError as error:
            if not self._stopped.is_set():
                log.info("watch of %s broke, resuming: %s", self._prefix, error)
        finally:
            stream_over.set()

    def _requests(self, revision: int, stream_over: threading.Event) -> Iterator[Any]:
        start = self._prefix.encode()
        yield rpc_pb2.WatchRequest(
            create_request=rpc_pb2.WatchCreateRequest(
                key=start, range_end=_end(self._prefix), start_revision=revision
            )
        )
        stream_over.wait()

    def _apply(self, events: Sequence[Any]) -> None:
        for event in events:
            key = event.kv.key.decode()
            if event.type:  # DELETE
                self._items.pop(key, None)
            else:
                self._items[key] = event.kv.value
        self._notify()

    def _relist(self) -> int:
        for pause_s in doubling(_RETRY_S_MIN, _RETRY_S_MAX):
            if self._stopped.wait(pause_s):
                break
            try:
                items, revision = read_prefix(self._etcd, self._prefix)
            except EtcdClosed:
                raise
            except PenstockError as error:
                log.debug("listing %s failed: %s", self._prefix, error)
                continue
            if items != self._items:
                self._items = items
                self._notify()
            return revision
        return 0

    def _notify(self) -> None:
        if self._stopped.is_set():
            return
        try:
            self._on_items(dict(self._items))
        except Exception:
            # One listener's bug must not silence every later change.
            log.exception("the listener of %s failed", self._prefix)


_LEASE_RETRY_S = 0.1


class Lease:
    """A lease kept alive by a thread; keys put with `id` vanish `ttl_s` after this process stops.

    `is_held()` is judged by the local clock from before the last renewal was sent, so it turns
    False no later than etcd drops the lease. It may turn True again (etcd was away and came back);
    `is_lost()` is final: etcd said that the lease is gone.

    The exception is a virtual machine that is paused with all its clocks. When it continues, a
    lease that etcd has dropped counts as held until the next renewal, a quarter of `ttl_s` at most.
    Decisions in etcd compare the key itself, so a DDL, a lock or the oracle's window is safe. Two
    decisions are made without etcd. An oracle's leader may issue timestamps below those of its
    successor: a Pump refuses a Commit at or below the end of its stream, a client refuses a
    timestamp below its last, and a DDL that comes out of order makes Drainers stop. A writer may
    commit rows of the schema before a DDL: Drainers stop at those, because rows must be of the
    schema version at their place (`drainer.schema.tracker`). Nothing is changed silently.
    """

    def __init__(self, etcd: EtcdClient, ttl_s: int) -> None:
        self._etcd = etcd
        self._ttl_s = ttl_s
        self._lost = threading.Event()
        self._stopped = threading.Event()
        sent_s = time.monotonic()
        with etcd_errors(etcd):
            self.id: int = etcd.lease(ttl_s).id
        self._deadline_s = sent_s + ttl_s
        self._thread = threading.Thread(target=self._run, name=f"lease {self.id:x}", daemon=True)
        self._thread.start()

    def put(self, key: str, value: str) -> None:
        put(self._etcd, key, value, lease_id=self.id)

    def is_held(self) -> bool:
        """Return whether no one else can consider this lease gone."""
        return time.monotonic() < self._deadline_s and not self._lost.is_set()

    def is_lost(self) -> bool:
        return self._lost.is_set()

    def close(self) -> None:
        """Revoke the lease and its keys immediately; without etcd they expire automatically."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if self._lost.is_set():
            return
        self._lost.set()
        try:
            revoke(self._etcd, self.id)
        except Retryable as error:
            log.info("lease %x is left to expire: %s", self.id, error)

    def _run(self) -> None:
        wait_s = self._ttl_s / 4
        while not self._stopped.wait(wait_s):
            try:
                self._renew()
            except EtcdClosed:
                return
            except PenstockError as error:
                log.debug("renewing lease %x failed: %s", self.id, error)
                wait_s = _LEASE_RETRY_S
                continue
            if self._lost.is_set():
                log.warning("lease %x was lost", self.id)
                return
            wait_s = self._ttl_s / 4

    def _renew(self) -> None:
        sent_s = time.monotonic()
        request = rpc_pb2.LeaseKeepAliveRequest(ID=self.id)
        with etcd_errors(self._etcd):
            answers = self._etcd.leasestub.LeaseKeepAlive(
                iter([request]), self._ttl_s / 2, metadata=self._etcd.metadata
            )
            for answer in answers:
                if answer.TTL > 0:
                    self._deadline_s = sent_s + self._ttl_s
                else:
                    self._lost.set()


PAGE_KEYS = 500


def read_pages(
    etcd: EtcdClient,
    prefix: str,
    *,
    first: str = "",
    after_revision: int = 0,
    page_keys: int = PAGE_KEYS,
) -> Iterator[tuple[str, bytes, int]]:
    """Return (key, value, create revision) of all keys below an ASCII prefix, in key order.

    Only keys from `first` on, created after `after_revision`. A key that comes during the read may
    or may not be included. Retryable when etcd does not answer.
    """
    start, end = (first or prefix).encode(), _end(prefix)
    while True:
        request = rpc_pb2.RangeRequest(
            key=start,
            range_end=end,
            limit=page_keys,
            min_create_revision=after_revision + 1 if after_revision else 0,
        )
        with etcd_errors(etcd):
            answer = etcd.kvstub.Range(request, etcd.timeout, metadata=etcd.metadata)
        for kv in answer.kvs:
            yield kv.key.decode(), kv.value, kv.create_revision
        if not answer.more or not answer.kvs:
            return
        start = answer.kvs[-1].key + b"\0"


def is_any_from(etcd: EtcdClient, prefix: str, key: str) -> bool:
    """Return whether a key below an ASCII prefix is at or after `key`; may be `Retryable`."""
    request = rpc_pb2.RangeRequest(
        key=key.encode(), range_end=_end(prefix), limit=1, keys_only=True
    )
    with etcd_errors(etcd):
        return bool(etcd.kvstub.Range(request, etcd.timeout, metadata=etcd.metadata).kvs)


def _end(prefix: str) -> bytes:
    start = prefix.encode()
    return start[:-1] + bytes([start[-1] + 1])


USER, PASSWORD = "PENSTOCK_ETCD_USER", "PENSTOCK_ETCD_PASSWORD"
HINT = (
    f"set {USER} and {PASSWORD}, and grant that user read and write on /penstock and /tidb-binlog"
)


def login_from(env: Mapping[str, str]) -> tuple[str, str] | None:
    """Return user and password, None if neither is set; `NeedsOperator` if only one is."""
    user, password = env.get(USER, ""), env.get(PASSWORD, "")
    if bool(user) != bool(password):
        has, lacks = (USER, PASSWORD) if user else (PASSWORD, USER)
        raise NeedsOperator(f"{has} is set and {lacks} is not", "set both", Code.SETTING_VALUE)
    return (user, password) if user else None


class Login(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """Adds a token to each call on a channel; safe to share between threads."""

    def __init__(self, channel: grpc.Channel, user: str, password: str, timeout_s: float) -> None:
        self._auth = rpc_pb2_grpc.AuthStub(channel)  # type: ignore[no-untyped-call]
        self._request = rpc_pb2.AuthenticateRequest(name=user, password=password)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._token = ""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Make the call; retry it once with a new token if etcd does not know the token."""
        token = self._valid_token("")
        call = continuation(_with(details, token), request)
        if call.code() is not grpc.StatusCode.UNAUTHENTICATED:
            return call
        return continuation(_with(details, self._valid_token(token)), request)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        """Open the stream with its own token, because a stream cannot be retried."""
        return continuation(_with(details, self._valid_token(self._token)), requests)

    def _valid_token(self, refused: str) -> str:
        """Return a token other than `refused`; raise `grpc.RpcError` as Authenticate does."""
        with self._lock:
            if self._token == refused:
                self._token = self._auth.Authenticate(self._request, self._timeout_s).token
            return self._token


def _with(details: Any, token: str) -> SimpleNamespace:
    """Return the properties of a call that differ from the given; gRPC takes the others there."""
    return SimpleNamespace(metadata=(*(details.metadata or ()), ("token", token)))

"""TLS between nodes and clients, from PEM files that are read again when they change on disk.

    ssl-ca              TLS is on iff this is set: a server must show a certificate signed by it
    ssl-cert, ssl-key   shown by a node to its callers and to the nodes that it calls
    cert-allowed-cn     callers must also show a certificate, with one of these common names
    etcd-ssl-…, pd-ssl-…  for https:// in etcd-urls and pd-address, where those are signed by others

Every connection uses the current content of the files, so certificates are replaced without a
restart; a node's HTTP pages are served with those of its gRPC port. Unusable files, such as a new
certificate whose key is still to come, are named in the log, and the last good files stay in use.
Private keys are never logged.

A failed handshake is a line in the node's log (`node.logs`). The caller is only disconnected, and
finds out the reason through `refusal`. For a wrong common name it gets UNAUTHENTICATED.

*Roles* are the methods that a caller's certificate allows, if `cert-roles` is set:

    writer      writes binlogs
    drainer     pulls binlogs; programs that read the stream also have this role
    pump        writes replicas of logs, and notifies Drainers
    operator    pauses, closes, moves, purges; may pull as well, to look at binlogs

All of them may ask for the status, for timestamps, and for health probes. A method that is not in
the table is the operator's. Files, contexts and callers are one module, because each needs the
others' checks.
"""

from __future__ import annotations

import contextlib
import http.client
import inspect
import logging
import ssl
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.security.databases import trusting
from penstock.settings.setting import out_of_range, setting

log = logging.getLogger(__name__)

Options = Sequence[tuple[str, int]]

WRITER, DRAINER, PUMP, OPERATOR = "writer", "drainer", "pump", "operator"
ROLES: Final = (WRITER, DRAINER, PUMP, OPERATOR)

_FOR_ALL: Final = ("/grpc.health.v1.Health/", "/grpc.reflection.", "/pdpb.PD/")
_ROLES_OF: Final[Mapping[str, frozenset[str]]] = {
    "/binlog.Pump/WriteBinlog": frozenset({WRITER}),
    "/binlog.Pump/PullBinlogs": frozenset({DRAINER, OPERATOR}),
    "/binlog.Cistern/Notify": frozenset({PUMP}),
    "/penstock.Pump/Write": frozenset({WRITER}),
    "/penstock.Pump/WriteLarge": frozenset({WRITER}),
    "/penstock.Pump/WriteDecided": frozenset({WRITER}),
    "/penstock.Pump/Pull": frozenset({DRAINER, OPERATOR}),
    "/penstock.Pump/Fetch": frozenset({DRAINER, OPERATOR}),
    "/penstock.Pump/Advance": frozenset({DRAINER}),
    "/penstock.Pump/Status": frozenset(ROLES),
    "/penstock.Drainer/Status": frozenset(ROLES),
    "/penstock.Replica/Follow": frozenset({PUMP}),
    "/penstock.Replica/Prepend": frozenset({PUMP}),
    "/penstock.Replica/Read": frozenset({PUMP}),
}


def roles_for(path: str) -> frozenset[str]:
    """Return the roles that may call a method, given as `/package.Service/Method`."""
    if path.startswith(_FOR_ALL):
        return frozenset(ROLES)
    return _ROLES_OF.get(path, frozenset({OPERATOR}))


def parsed_roles(entries: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return roles by common name from entries `name=role+role`; `ValueError` for others."""
    found: dict[str, frozenset[str]] = {}
    for entry in entries:
        name, equals, text = entry.rpartition("=")
        roles = frozenset(part.strip() for part in text.split("+"))
        if not (equals and name.strip()):
            raise ValueError("write each entry as name=role, or name=role+role")
        if unknown := roles - frozenset(ROLES):
            raise ValueError(f"{min(unknown)!r} is not a role: use {', '.join(ROLES)}")
        found[name.strip()] = found.get(name.strip(), frozenset()) | roles
    return found


@dataclass(frozen=True, kw_only=True)
class SecurityConfig:
    """The callers that may connect to this node, and the certificates that it shows to others."""

    ssl_ca: str = setting("", "PEM file of the CA that all nodes trust; turns TLS on")
    ssl_cert: str = setting("", "PEM file of this node's certificate, signed by that CA")
    ssl_key: str = setting("", "PEM file of its private key, without a passphrase")
    cert_allowed_cn: tuple[str, ...] = setting(
        (), "callers must have a certificate with one of these common names; other nodes too"
    )
    cert_roles: tuple[str, ...] = setting(
        (),
        "roles of callers, each entry name=role+role: the common name, and writer, drainer, pump"
        " or operator (default: every name in cert-allowed-cn may call everything)",
    )
    etcd_ssl_ca: str = setting("", "PEM file of the CA of an etcd at https://; default: ssl-ca")
    etcd_ssl_cert: str = setting("", "PEM file of the certificate shown to it; default: ssl-cert")
    etcd_ssl_key: str = setting("", "PEM file of its private key; default: ssl-key")
    pd_ssl_ca: str = setting("", "PEM file of the CA of a PD at https://; default: ssl-ca")
    pd_ssl_cert: str = setting("", "PEM file of the certificate shown to it; default: ssl-cert")
    pd_ssl_key: str = setting("", "PEM file of its private key; default: ssl-key")

    def __post_init__(self) -> None:
        for whose in ("etcd", "pd"):
            cert, key = f"{whose}_ssl_cert", f"{whose}_ssl_key"
            if bool(getattr(self, cert)) != bool(getattr(self, key)):
                lacking = key if getattr(self, cert) else cert
                raise out_of_range(f"security.{lacking}", "", "certificate and key go together")
        self._check_roles()
        if self.ssl_ca:
            for name in ("ssl_cert", "ssl_key"):
                if not getattr(self, name):
                    raise out_of_range(f"security.{name}", "", "with ssl-ca it must be set")
            return
        for name in ("ssl_cert", "ssl_key", "cert_allowed_cn"):
            if value := getattr(self, name):
                raise out_of_range(f"security.{name}", value, "it needs ssl-ca, or nothing is safe")

    def _check_roles(self) -> None:
        try:
            names = parsed_roles(self.cert_roles)
        except ValueError as error:
            raise out_of_range("security.cert_roles", self.cert_roles, str(error)) from error
        if names and names.keys() != set(self.cert_allowed_cn):
            one = min(names.keys() ^ set(self.cert_allowed_cn))
            hint = f"name the same certificates in cert-allowed-cn; {one!r} is in one of them only"
            raise out_of_range("security.cert_roles", self.cert_roles, hint)


@dataclass(frozen=True, slots=True)
class _Pem:
    ca: bytes | None
    cert: bytes | None
    key: bytes | None

    def __repr__(self) -> str:
        return "_Pem(…)"  # Keys must not get into a log through a traceback.


_in_use: weakref.WeakSet[Tls] = weakref.WeakSet()


def read_again() -> None:
    """Read all certificates that changed on disk now, not only at the next handshake.

    Unusable files are named in the log, and the last good files stay in use.
    """
    for tls in list(_in_use):
        with contextlib.suppress(NeedsOperator):  # Never usable, and so not in use.
            tls.check()


class Tls:
    """PEM files for one end of TLS; without `ca` gRPC's own list of authorities is trusted.

    A client needs `cert` and `key` only where the nodes ask for a client's certificate.
    """

    def __init__(
        self,
        *,
        ca: Path | str | None = None,
        cert: Path | str | None = None,
        key: Path | str | None = None,
    ) -> None:
        if (cert is None) != (key is None):
            raise NeedsOperator(
                "a certificate and its key belong together",
                "give both of them, or neither",
                Code.TLS_FILES,
            )
        self._ca, self._cert, self._key = _path("ca", ca), _path("cert", cert), _path("key", key)
        self._lock = threading.Lock()
        self._good: _Pem | None = None
        self._good_stamp: object = None
        self._bad_stamp: object = None
        _in_use.add(self)

    def check(self) -> None:
        """Raise `NeedsOperator` if the files are unusable and were never usable."""
        self._read()

    def check_own(self) -> None:
        """Raise `NeedsOperator` unless the CA has signed the certificate, and it is valid now.

        Every other node would refuse it. Both ends of a handshake are played, in memory.
        """
        ca, cert, key = self.files
        assert cert is not None
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.client_context()
        server.load_cert_chain(cert, key)
        client.check_hostname = False
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
        try:
            for end in (*ends, ends[0]):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        except ssl.SSLCertVerificationError as error:
            raise NeedsOperator(
                f"the certificate in {cert} is not one that the CA in {ca} vouches for:"
                f" {error.verify_message}",
                "every node would refuse it: give ssl-cert, ssl-key and ssl-ca that belong"
                " together; see deploy/README.md",
                Code.TLS_NOT_TRUSTED,
            ) from error

    @property
    def files(self) -> tuple[Path | None, Path | None, Path | None]:
        return self._ca, self._cert, self._key

    def version(self) -> object:
        """Return an object that is replaced when the files are read again."""
        return self._read()

    def channel_credentials(self) -> grpc.ChannelCredentials:
        pem = self._read()
        return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)

    def client_context(self) -> ssl.SSLContext:
        ca, cert, key = self.files
        context = trusting(ca)
        context.set_alpn_protocols(["h2"])
        if cert is not None:
            context.load_cert_chain(cert, key, password=self._refuse_passphrase)
        return context

    def server_credentials(self, *, with_client_certificate: bool) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._server_configuration(), self._server_configuration, with_client_certificate
        )

    def _server_configuration(self) -> Any:
        pem = self._read()
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca)

    def _read(self) -> _Pem:
        with self._lock:
            stamp = self._stamp()
            if self._good is not None and stamp in (self._good_stamp, self._bad_stamp):
                return self._good
            try:
                pem = self._checked()
                if self._stamp() != stamp:
                    raise NeedsOperator(
                        f"{self} changed while read", "they are read again", Code.TLS_FILES
                    )
            except NeedsOperator as error:
                if self._good is None:
                    raise
                log.error("certificates on disk are not usable, the old ones serve on: %s", error)
                self._bad_stamp = stamp
                return self._good
            if self._good is not None:
                log.info("new connections use the certificates read again from %s", self)
            self._good, self._good_stamp = pem, stamp
            return pem

    def _stamp(self) -> object:
        return tuple(_identity(path) for path in (self._ca, self._cert, self._key))

    def _checked(self) -> _Pem:
        pem = _Pem(_content(self._ca), _content(self._cert), _content(self._key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if pem.ca is not None:
            try:
                context.load_verify_locations(cadata=pem.ca.decode("ascii", "replace"))
            except (ssl.SSLError, ValueError) as error:
                raise NeedsOperator(
                    f"{self._ca} is no PEM file of certificates: {_reason(error)}",
                    "ssl-ca wants the CA's certificate",
                    Code.TLS_FILES,
                ) from error
        if self._cert is not None:
            assert self._key is not None
            try:
                context.load_cert_chain(self._cert, self._key, password=self._refuse_passphrase)
            except (ssl.SSLError, OSError) as error:
                raise NeedsOperator(
                    f"{self._cert} and {self._key} are not a certificate and its key:"
                    f" {_reason(error)}",
                    "both are PEM files, made for each other; see deploy/README.md",
                    Code.TLS_FILES,
                ) from error
        return pem

    def _refuse_passphrase(self) -> NoReturn:
        raise NeedsOperator(
            f"{self._key} is encrypted",
            "keep the key without a passphrase, readable only by who runs this",
            Code.TLS_FILES,
        )

    def __repr__(self) -> str:
        return ", ".join(str(path) for path in (self._ca, self._cert, self._key) if path)


def _path(name: str, given: object) -> Path | None:
    if given is None or (isinstance(given, str | Path) and str(given)):
        return None if given is None else Path(given)
    raise NeedsOperator(
        f"{name} of TLS is {given!r}",
        "give the path of a PEM file, as text or as a Path",
        Code.TLS_FILES,
    )


def _identity(path: Path | None) -> object:
    try:
        found = path.stat() if path is not None else None
    except OSError as error:
        return error.errno
    # The inode's change time also moves with a rename and a chmod.
    return found and (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _content(path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path is not None else None
    except OSError as error:
        raise NeedsOperator(
            f"cannot read {path}: {error.strerror}",
            "check ssl-ca, ssl-cert and ssl-key",
            Code.TLS_FILES,
        ) from error


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)


NO_PROXY: Final = ("grpc.enable_http_proxy", 0)
"""Nodes are addressed directly: a proxy in the environment is for the internet."""


def open_channel(
    address: str, tls: Tls | None, options: Options = (), *, module: Any = grpc
) -> Any:
    """Return a channel to a node, of `grpc` or `grpc.aio`; nothing is sent yet."""
    options = (NO_PROXY, *options)
    if tls is None:
        return module.insecure_channel(address, options=options)
    return module.secure_channel(address, tls.channel_credentials(), options=options)


open_aio_channel = partial(open_channel, module=grpc.aio)


def open_http(address: str, tls: Tls | None, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection to a page of a node; nothing is sent yet."""
    if tls is None:
        return http.client.HTTPConnection(address, timeout=timeout_s)
    context = tls.client_context()
    context.set_alpn_protocols(["http/1.1"])
    return http.client.HTTPSConnection(address, timeout=timeout_s, context=context)


class Security:
    """The TLS of a node: how it admits others, and `tls`, with which it calls them."""

    def __init__(self, config: SecurityConfig) -> None:
        self.tls: Tls | None = None
        self.allowed = frozenset(config.cert_allowed_cn)
        self._roles = parsed_roles(config.cert_roles)
        if config.ssl_ca:
            ca, cert, key = map(Path, (config.ssl_ca, config.ssl_cert, config.ssl_key))
            self.tls = Tls(ca=ca, cert=cert, key=key)
            self.tls.check()
            self.tls.check_own()
        self.etcd_tls = self._for("etcd", config)
        """For endpoints of etcd at https://."""
        self.pd_tls = self._for("pd", config)

    def _for(self, whose: str, config: SecurityConfig) -> Tls:
        names = [f"{whose}_ssl_{name}" for name in ("ca", "cert", "key")]
        ca, cert, key = (Path(text) if (text := getattr(config, name)) else None for name in names)
        own = self.tls.files if self.tls is not None else (None, None, None)
        if cert is None:
            cert, key = own[1:]
        tls = Tls(ca=ca or own[0], cert=cert, key=key)
        tls.check()
        return tls

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        return [OnlyNames(self.allowed, self._roles)] if self.allowed else []

    def add_port(self, server: Any, address: str) -> int:
        """Bind `address` and return the port; raises gRPC's error when that is impossible.

        The server is one of `grpc.aio`, or one that takes Python's own contexts by
        `add_tls_port`.
        """
        if self.tls is None:
            return int(server.add_insecure_port(address))
        is_mutual = bool(self.allowed)
        if hasattr(server, "add_tls_port"):
            contexts = ServerContexts(
                self.tls, with_client_certificate=is_mutual, protocols=("h2",)
            )
            port = int(server.add_tls_port(address, contexts.current))
        else:
            credentials = self.tls.server_credentials(with_client_certificate=is_mutual)
            port = int(server.add_secure_port(address, credentials))
        asked = "need no certificate"
        if self.allowed:
            asked = f"must show a certificate of {' or '.join(sorted(self.allowed))}"
        if self.allowed and not self._roles:
            asked += ", and each may call everything (see cert-roles)"
        log.info("TLS is on; callers %s", asked)
        return port


_PEM_BEGIN, _PEM_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


class OnlyNames(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses callers whose certificate bears another common name, method by method.

    With `roles`, by common name, it also refuses callers whose role does not include the method.
    """

    def __init__(
        self, allowed: frozenset[str], roles: Mapping[str, frozenset[str]] | None = None
    ) -> None:
        self._allowed = allowed
        self._roles = roles or {}

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Return the method's handler with the check; None for an unknown method."""
        handler = await continuation(details)
        if handler is None:
            return None
        kind = ("stream" if handler.request_streaming else "unary") + "_"
        kind += "stream" if handler.response_streaming else "unary"
        checked = self._checked(getattr(handler, kind), details.method)
        make: Callable[..., Any] = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(checked, handler.request_deserializer, handler.response_serializer)

    def _checked(self, method: Any, path: str) -> Any:
        if inspect.isasyncgenfunction(method):

            async def streaming(request: Any, context: Any) -> Any:
                await self._check(context, path)
                async with aclosing(method(request, context)) as responses:
                    async for response in responses:
                        yield response

            return streaming

        async def calling(request: Any, context: Any) -> Any:
            await self._check(context, path)
            response = method(request, context)
            # Generated services answer UNIMPLEMENTED without being coroutines.
            return await response if inspect.isawaitable(response) else response

        return calling

    def admits(self, auth: Mapping[str, Any], path: str) -> bool:
        wanted, none = roles_for(path), frozenset[str]()
        return self._is_listed(auth) and (
            not self._roles or any(wanted & self._roles.get(name, none) for name in _names_in(auth))
        )

    def _is_listed(self, auth: Mapping[str, Any]) -> bool:
        return not self._allowed.isdisjoint(_names_in(auth))

    async def _check(self, context: Any, path: str) -> None:
        auth = context.auth_context()
        if self.admits(auth, path):
            return
        names = _names_in(auth)
        shown = f"the certificate's common name is {', '.join(map(repr, names)) or 'missing'}"
        if not self._is_listed(auth):
            allowed = ", ".join(sorted(self._allowed))
            log.warning("refused %s: %s; allowed are: %s", context.peer(), shown, allowed)
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, f"{shown}, which cert-allowed-cn does not list"
            )
        roles = " or ".join(sorted(roles_for(path)))
        reason = f"{shown}, which cert-roles does not make a {roles}: {path} needs that role"
        log.warning("refused %s: %s", context.peer(), reason)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)


def _names_in(auth: Mapping[str, Any]) -> list[str]:
    return [name.decode("utf-8", "replace") for name in auth.get("x509_common_name", ())]


def server_context(tls: Tls, *, with_client_certificate: bool) -> ssl.SSLContext:
    """Return a context that checks the files before each handshake; they are usable now."""
    now = ServerContexts(tls, with_client_certificate=with_client_certificate)
    entrance = now.current()

    def choose(connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = now.current()

    entrance.sni_callback = choose
    return entrance


def frozen_server(tls: Tls) -> tuple[ssl.SSLContext, bytes]:
    """Return a server context with the current certificate fixed, and its DER."""
    _, cert, _ = tls.files
    assert cert is not None, "a node with TLS has a certificate"
    version = None
    while version is not tls.version():  # Both are of the same files.
        version = tls.version()
        context = ServerContexts(tls, with_client_certificate=False).current()
        text = cert.read_text("ascii", "replace")
    begin, end = text.index(_PEM_BEGIN), text.index(_PEM_END) + len(_PEM_END)
    return context, ssl.PEM_cert_to_DER_cert(text[begin:end])


class ServerContexts:
    """The contexts for a server's handshakes, made again when the files change."""

    def __init__(
        self, tls: Tls, *, with_client_certificate: bool, protocols: Sequence[str] = ()
    ) -> None:
        """`protocols` are the protocols that the server speaks over TLS, by ALPN name."""
        self._tls = tls
        self._with_client_certificate = with_client_certificate
        self._protocols = tuple(protocols)
        self._version: object = None
        self._context: ssl.SSLContext | None = None

    def current(self) -> ssl.SSLContext:
        version = self._tls.version()
        if version is self._version and self._context is not None:
            return self._context
        try:
            self._context = self._made()
        except (OSError, ssl.SSLError) as error:  # Changed again since they were checked.
            if self._context is None:
                raise
            log.warning("handshakes continue with the certificates of before: %s", error)
        else:
            self._version = version
        return self._context

    def _made(self) -> ssl.SSLContext:
        ca, cert, key = self._tls.files
        assert cert is not None, "a node with TLS has a certificate"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        if self._with_client_certificate:
            context.load_verify_locations(ca)
            context.verify_mode = ssl.CERT_REQUIRED
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        return context


def common_names(certificate: Any) -> list[str]:
    subject = (certificate or {}).get("subject", ())
    return [value for part in subject for name, value in part if name == "commonName"]

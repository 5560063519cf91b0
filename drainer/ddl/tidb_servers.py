"""TiDB servers: asks their status ports over HTTP, and reports those that write no binlog.

    etcd    /tidb/server/info/<uuid>   {"ip": …, "status_port": …, "version": …}, on a lease
                                       "binlog_status": "Off", or "Skipping" after an error
    etcd    /tidb/ddl/global_schema_version   decimal: the newest version, also of unfinished jobs
    HTTP    http[s]://<ip>:<status_port><path>

A server that went away without notice stays in etcd until its lease ends. The server that answered
last is asked first. An answer of many megabytes is read in pieces: `read_array` yields the elements
of a JSON array as they come, and holds one of them.

A TiDB changes rows without a binlog if a server's binlog is off, and if a table has a TTL: TiDB
deletes expired rows. Such rows differ downstream, and the stream does not show it. Each server and
each table is therefore reported in the log when it is first seen, and counted in status and metrics
(`Unlogged`).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from io import BufferedIOBase
from typing import Any

from drainer.facts import UnloggedFacts
from penstock.cluster.etcd import EtcdClient, read, read_prefix
from penstock.codes import Code
from penstock.errors import Malformed, PenstockError, Retryable
from penstock.schema.model import TableInfo
from penstock.security.tls import Tls, open_http

log = logging.getLogger(__name__)

SERVERS = "/tidb/server/info/"
GLOBAL_VERSION = "/tidb/ddl/global_schema_version"
_CONNECT_S = 3.0
_TIMEOUT_S = 60.0
"""How long a server may be silent: it reads its history before it starts to answer."""
_PIECE_BYTES = 1 << 18
_REFUSAL_BYTES_MAX = 300


class NotGiven(PenstockError):
    """Servers answered, and all of them rejected the request."""


Read = Callable[[BufferedIOBase, str], Iterator[Any]]


class StatusPorts:
    """All servers of a cluster; blocking, safe to share between threads."""

    def __init__(self, etcd: EtcdClient, tls: Tls | None, *, timeout_s: float = _TIMEOUT_S) -> None:
        """Use `tls`, the cluster's certificates, or plain HTTP without it."""
        self._etcd = etcd
        self._tls = tls
        self._timeout_s = timeout_s
        self._last = ""
        self._failed: set[str] = set()

    def servers(self) -> list[str]:
        """Return the listed servers, the last to answer first and the last to fail last."""
        items, _ = read_prefix(self._etcd, SERVERS)
        found = {server for key, value in items.items() if (server := _server(key, value))}
        self._failed &= found
        return sorted(found, key=lambda each: (each != self._last, each in self._failed, each))

    def schema_version(self) -> int:
        """Return the cluster's newest schema version, 0 if it reports none. May be Retryable."""
        value = read(self._etcd, GLOBAL_VERSION) or b"0"
        return int(value) if value.isdigit() else 0

    def elements(self, path: str) -> Iterator[Any]:
        """Yield the elements of the JSON array at a path, from the first server that has it.

        Retryable if no server answers, or if one stops in the middle; `NotGiven` if all servers
        that answer reject the request.
        """
        return self._asked(path, read_array)

    def value(self, path: str) -> Any:
        """Return the JSON at a path from the first server that has it; raises as `elements`."""

        def read_value(source: BufferedIOBase, where: str) -> Iterator[Any]:
            try:
                yield json.loads(b"".join(iter(lambda: source.read(_PIECE_BYTES), b"")))
            except ValueError as error:
                raise Retryable(f"{where}: no JSON: {error}", Code.TIDB_AWAY) from error

        (found,) = self._asked(path, read_value)
        return found

    def _asked(self, path: str, read: Read) -> Iterator[Any]:
        failures: list[str] = []
        refusals: list[str] = []
        connect_s = min(_CONNECT_S, self._timeout_s)
        for server in self.servers():
            where, has_begun = f"{server}{path}", False
            try:
                with closing(open_http(server, self._tls, connect_s)) as connection:
                    connection.connect()
                    connection.sock.settimeout(self._timeout_s)
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    if answer.status == 200:
                        self._last, has_begun = server, True
                        yield from read(answer, where)
                        self._failed.discard(server)
                        return
                    text = answer.read(_REFUSAL_BYTES_MAX).decode("utf-8", "replace").strip()
                    (refusals if answer.status < 500 else failures).append(
                        f"{where} answers {answer.status}: {text}"
                    )
            except (OSError, http.client.HTTPException, Retryable) as error:
                failures.append(f"{server}: {type(error).__name__}: {error}")
                if has_begun:  # The caller has a part of its answer.
                    self._forget(server)
                    raise Retryable(failures[-1], Code.TIDB_AWAY) from error
            self._forget(server)
        if refusals and not failures:
            raise NotGiven("; ".join(refusals), code=Code.TIDB_STATUS_PORT)
        if not failures:
            raise Retryable(
                f"no TiDB server is listed in etcd below {SERVERS}: is --etcd-urls its PD's, and"
                " does one run?",
                Code.TIDB_AWAY,
            )
        raise Retryable(
            f"no TiDB server's status port answers: {'; '.join(failures + refusals)}",
            Code.TIDB_AWAY,
        )

    def _forget(self, server: str) -> None:
        self._failed.add(server)
        self._last = "" if self._last == server else self._last


def _server(key: str, value: bytes) -> str | None:
    try:
        fields = json.loads(value)
        return f"{fields['ip']}:{int(fields['status_port'])}"
    except (ValueError, KeyError, TypeError):
        log.warning("%s in etcd is no TiDB server, so it is not asked: %r", key, value[:200])
        return None


def read_array(source: BufferedIOBase, where: str) -> Iterator[Any]:
    """Yield the elements of a JSON array one at a time; `null` counts as an empty array.

    Raises Malformed if the answer is not an array, Retryable if it ends too early.
    """
    array, tail = _Array(where), b""
    while not array.is_closed:
        piece = source.read(_PIECE_BYTES)
        text, tail = _decoded(tail + piece, where, is_over=not piece)
        yield from array.fed(text, is_over=not piece)
        if not piece and not array.is_closed:
            raise Retryable(f"{where}: the answer ends in the middle", Code.TIDB_AWAY)


class _Array:
    """A JSON array that comes in pieces; holds only the incomplete element."""

    def __init__(self, where: str) -> None:
        self.is_closed = False
        self._where = where
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._is_open = False
        self._wanted_chars = 0

    def fed(self, text: str, *, is_over: bool) -> Iterator[Any]:
        """Yield the elements that are complete now; `is_over` means that no text follows."""
        self._text += text
        if not self._is_open:
            self._open(is_over=is_over)
        at = 0
        while self._is_open and (is_over or len(self._text) >= self._wanted_chars):
            while at < len(self._text) and self._text[at] in " \t\r\n,":
                at += 1
            if self._text.startswith("]", at):
                self.is_closed = True
                return
            try:
                element, end = self._decoder.raw_decode(self._text, at)
            except ValueError:
                # The element is longer than the text so far: look again when there is twice as
                # much.
                self._wanted_chars = 2 * (len(self._text) - at)
                break
            if end == len(self._text) and not is_over:
                break  # A number could have more digits.
            yield element
            at, self._wanted_chars = end, 0
        self._text = self._text[at:]

    def _open(self, *, is_over: bool) -> None:
        text = self._text = self._text.lstrip()
        if text.startswith("["):
            self._is_open, self._text = True, text[1:]
        elif text == "null" or text[:5].rstrip() == "null":
            self.is_closed = True
        elif is_over or not "null".startswith(text):
            raise Malformed(
                f"{self._where} is no list of JSON: {text[:80]!r}",
                "is this a TiDB's status port?",
                Code.TIDB_STATUS_PORT,
            )


def _decoded(data: bytes, where: str, *, is_over: bool) -> tuple[str, bytes]:
    """Return the text of complete characters, and the bytes of a character that was cut."""
    for cut in range(4):
        try:
            return data[: len(data) - cut].decode(), data[len(data) - cut :]
        except UnicodeDecodeError as error:
            if is_over or error.start < len(data) - cut - 4:
                break
    raise Malformed(f"{where} is not UTF-8", "is this a TiDB's status port?", Code.TIDB_STATUS_PORT)


_LOGGED = ("On", "Unknown", "")
"""Unknown is a server that has no binlog configured yet, "" one that does not report it."""
_TICK_S = 5.0


def servers_without_binlog(items: Iterable[bytes]) -> dict[str, str]:
    """Return the status of each TiDB server that writes no binlog, by its address."""
    found = {}
    for value in items:
        try:
            fields = json.loads(value)
            status = str(fields.get("binlog_status", ""))
            if status not in _LOGGED:
                found[f"{fields['ip']}:{fields['listening_port']}"] = status
        except (ValueError, KeyError, AttributeError):
            continue  # `StatusPorts` reports an entry that cannot be read.
    return found


class Unlogged:
    """The servers and tables of one TiDB cluster whose changes have no binlog."""

    def __init__(
        self, etcd: EtcdClient, tables: Callable[[], Iterable[tuple[str, TableInfo]]]
    ) -> None:
        self._etcd = etcd
        self._tables = tables
        self.servers: dict[str, str] = {}
        self.expiring: set[str] = set()

    async def watch(self) -> None:
        while True:
            try:
                items, _ = await asyncio.to_thread(read_prefix, self._etcd, SERVERS)
            except PenstockError as error:
                log.debug("cannot list the TiDB servers: %s", error)
            else:
                self.note(servers_without_binlog(items.values()))
            await asyncio.sleep(_TICK_S)

    def note(self, servers: dict[str, str]) -> None:
        for address, status in servers.items():
            if self.servers.get(address) != status:
                log.error(
                    "TiDB server %s writes no binlog (binlog_status %s): rows that it changes are"
                    " missing downstream; set [binlog] enable = true, restart it, then compare"
                    " the tables with `penstock verify`",
                    address, status,
                )  # fmt: skip
        self.servers = servers
        expiring = {f"{schema}.{table.name}" for schema, table in self._tables() if table.expires}
        for name in sorted(expiring - self.expiring):
            log.warning(
                "table %s has a TTL: TiDB deletes its expired rows without a binlog, and they stay"
                " downstream",
                name,
            )
        self.expiring = expiring

    def facts(self) -> UnloggedFacts:
        servers = ", ".join(f"{at} ({status})" for at, status in sorted(self.servers.items()))
        return UnloggedFacts(
            tidb_servers_without_binlog=servers or "none",
            tidb_tables_with_ttl=", ".join(sorted(self.expiring)) or "none",
        )

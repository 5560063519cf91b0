"""A MySQL that answers by script: a handshake, queries by pattern, and a dump of events.

It stands in for what a MariaDB cannot show, MySQL's own paths, and for errors on demand. What it is
sent is kept in `queries` and `commands`.
"""

import re
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Self

from pumpclient.mysql.protocol.server import ServerAddress

Rows = tuple[Sequence[str], Sequence[Sequence[object]]]
_PROTOCOL_41, _SECURE, _PLUGIN_AUTH, _TRANSACTIONS = 1 << 9, 1 << 15, 1 << 19, 1 << 13
_CAPABILITIES = _PROTOCOL_41 | _SECURE | _PLUGIN_AUTH | _TRANSACTIONS | 1 << 3
_OK = bytes([0, 0, 0, 2, 0, 0, 0])
_EOF = bytes([0xFE, 0, 0, 2, 0])

EIGHT = "8.4.2"
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def error(code: int, message: str, state: str = "HY000") -> bytes:
    return b"\xff" + struct.pack("<H", code) + f"#{state}{message}".encode()


def answers(version: str = EIGHT) -> dict[str, Rows | bytes]:
    """Return what a MySQL 8.4 says to the questions of a replica."""
    unknown = error(1064, "You have an error in your SQL syntax", "42000")
    return {
        r"SELECT VERSION\(\)": (("version", "id"), [(version, 7)]),
        r"server_uuid": (("uuid",), [(UUID,)]),
        r"@@global\.server_id AS id": (("id",), [(7,)]),
        r"gtid_executed": (("gtids",), [(f"{UUID}:1-9",)]),
        r"SHOW (MASTER STATUS|SLAVE HOSTS)": unknown,
        r"SHOW BINARY LOG STATUS": (
            ("File", "Position", "Binlog_Do_DB", "Binlog_Ignore_DB", "Executed_Gtid_Set"),
            [("binlog.000004", 1234, "", "", f"{UUID}:1-9")],
        ),
        r"SHOW REPLICAS": (("Server_Id", "Host"), [(11, "a"), (12, "b")]),
    }


class ScriptedMysql:
    """Listens on loopback; each dump command gets the packets of `dump(command)`, then silence."""

    def __init__(
        self,
        dump: Callable[[bytes], list[bytes]] = lambda _: [],
        rows: dict[str, Rows | bytes] | None = None,
        version: str = EIGHT,
    ) -> None:
        self.dump = dump
        self.version = version
        self.rows = answers() if rows is None else rows
        self.queries: list[str] = []
        self.commands: list[bytes] = []
        self.sent_back: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.address = ServerAddress("127.0.0.1", self._listener.getsockname()[1], "u", "p")

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="scripted MySQL", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        for sock in self._open:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
            finally:
                sock.close()
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            _send(sock, 0, _greeting(self.version))
            _receive(sock)
            _send(sock, 2, _OK)
            while (payload := _receive(sock)) is not None:
                self._answer(sock, payload)
        except (OSError, ValueError):
            pass
        finally:
            sock.close()

    def _answer(self, sock: socket.socket, payload: bytes) -> None:
        if payload[0] == 0x03:
            self.queries.append(payload[1:].decode())
            _send_rows(sock, self._rows_for(self.queries[-1]))
        elif payload[0] in (0x12, 0x1E):
            self.commands.append(payload)
            for number, packet in enumerate(self.dump(payload), 1):
                _send(sock, number, packet)
        elif payload[0] == 0x01:
            raise OSError("goodbye")
        elif payload[0] == 0xEF:
            self.sent_back.append(payload)
        else:
            self.commands.append(payload)
            _send(sock, 1, _OK)

    def _rows_for(self, sql: str) -> Rows | bytes:
        for pattern, rows in self.rows.items():
            if re.search(pattern, sql):
                return rows
        return _OK


def event_packet(event: bytes) -> bytes:
    return b"\0" + event


def _greeting(version: str) -> bytes:
    salt = b"12345678" + b"123456789012\0"
    flags = struct.pack("<I", _CAPABILITIES)
    return b"".join(
        [
            b"\x0a" + version.encode() + b"\0",
            struct.pack("<I", 42) + salt[:8] + b"\0",
            flags[:2] + b"\x2d" + struct.pack("<H", 2) + flags[2:] + bytes([21]) + bytes(10),
            salt[8:] + b"mysql_native_password\0",
        ]
    )


def _send(sock: socket.socket, sequence: int, payload: bytes) -> None:
    while True:
        piece, payload = payload[:0xFFFFFF], payload[0xFFFFFF:]
        sock.sendall(struct.pack("<I", len(piece) | (sequence & 0xFF) << 24) + piece)
        sequence += 1
        if len(piece) < 0xFFFFFF:
            return


def _receive(sock: socket.socket) -> bytes | None:
    head = _exactly(sock, 4)
    return None if head is None else _exactly(sock, int.from_bytes(head[:3], "little"))


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            return None
        data += piece
    return data


def _text(value: object) -> bytes:
    data = str(value).encode()
    return bytes([len(data)]) + data


def _send_rows(sock: socket.socket, rows: Rows | bytes) -> None:
    if isinstance(rows, bytes):
        _send(sock, 1, rows)
        return
    names, values = rows
    packets = [bytes([len(names)])]
    for name in names:
        head = _text("def") + _text("") * 3 + _text(name) + _text("")
        packets.append(head + struct.pack("<BHIBHBH", 12, 45, 1024, 253, 0, 0, 0))
    packets += [_EOF, *(b"".join(map(_text, row)) for row in values), _EOF]
    for number, packet in enumerate(packets, 1):
        _send(sock, number, packet)

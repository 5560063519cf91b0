"""A `penstock source` as a child process: it sends one server's changes to the Pumps."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from penstock.codes import Code, code_named
from penstock.errors import NeedsOperator, Retryable
from penstock_local.process import ServerProcess, flags, free_port, open_local, python_module
from penstock_local.sql_server import SqlServer
from pumpclient.mysql.relay.layout import Location

ANSWER_S_MAX = 5.0


class MysqlSource(ServerProcess):
    """One source; its files are below `folder`, and stay over restarts."""

    def __init__(
        self, folder: Path, etcd_url: str, server: SqlServer, config: str = "", **settings: Any
    ) -> None:
        """`config` is TOML; `settings` are flags and override it, such as `mode="all"`."""
        self.address = f"127.0.0.1:{free_port()}"
        settings = {
            "source_id": "mysql-1",
            "etcd_urls": etcd_url,
            "data_dir": folder,
            "status_addr": self.address,
            "source_host": server.host,
            "source_port": server.port,
            "source_user": server.user,
            "lease_s": 2,
            "relay_dir": folder / "relay",
            "relay_purge_remain_space_bytes": 0,
            **settings,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "source.toml"
        path.write_text(config)
        secret = folder / "password"
        secret.write_text(server.password + "\n")
        settings["source_password_file"] = secret
        super().__init__(
            python_module("pumpclient.mysql.source", "--config", str(path), *flags(settings)),
            log=folder / "log",
        )

    def status(self) -> dict[str, Any]:
        """Return the status page, empty while it is unavailable."""
        try:
            return dict(json.loads(self.page("status")))
        except (OSError, http.client.HTTPException):
            return {}

    def page(self, name: str) -> str:
        url = f"http://{self.address}/{name}"
        with open_local(url, timeout_s=ANSWER_S_MAX) as answer:
            return str(answer.read().decode())

    def has(self, server: SqlServer) -> bool:
        """Return whether all of the server's changes are committed.

        Raises `Retryable` when the process has ended, `NeedsOperator` when it waits for a person.
        """
        if not self.is_running:
            raise Retryable(f"penstock source ended:\n{self.log_tail()}", Code.CHILD_FAILED)
        status = self.status()
        if status.get("state") == "failed":
            raise NeedsOperator(
                f"penstock source: {status['problem']}",
                status["hint"],
                code_named(status["code"]) or Code.NODE_REFUSES,
            )
        if not status.get("committed"):
            return False
        done = Location.parse(status["committed"])
        file, position = server.end()
        if str(done.file) != file or done.position > position:
            return False
        # After a rotation the server eventually logs a checkpoint, which is not a transaction.
        # Statements come in the bytes that they were written in, which may be in an unknown
        # charset.
        left = server.query(
            f"SHOW BINLOG EVENTS IN '{file}' FROM {done.position}", use_unicode=False
        )
        return all(event[2] == b"Binlog_checkpoint" for event in left)

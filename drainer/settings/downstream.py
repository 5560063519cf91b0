"""The downstream as the original's drainer.toml names it, as the URL that a sink is opened with.

    [syncer]                     [syncer.to]                  [syncer.to.checkpoint]
    db-type = "mysql"            host = "10.0.0.9"            schema = "tidb_binlog"
    sql-mode = "ANSI_"         user = "repl"

becomes mysql://repl:…@10.0.0.9:3306/?checkpoint-schema=tidb_binlog. What is not
said comes from MYSQL_HOST, MYSQL_PORT, MYSQL_USER and MYSQL_PSWD, then from the original's
defaults; loop-back control adds its channel to whichever URL there is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import quote, urlencode, urlsplit

from drainer.settings.syncer import MYSQL_TYPES, SyncerConfig, ToConfig
from penstock.errors import NeedsOperator
from penstock.security.sql_tls import FULL

DEFAULT_SINK = "sqlite:///downstream.db"


def downstream_url(
    sink: str,
    syncer: SyncerConfig,
    env: Mapping[str, str] | None = None,
    *,
    more: Mapping[str, str] | None = None,
) -> str:
    """Return the URL of the downstream, `more` options with it where it is a server.

    Raises `NeedsOperator` when two are named.
    """
    url = sink
    if syncer.to != ToConfig() or (syncer.db_type in MYSQL_TYPES and sink == DEFAULT_SINK):
        if sink != DEFAULT_SINK:
            raise NeedsOperator(
                "both sink and [syncer.to] name a downstream", hint="leave one of them out"
            )
        if syncer.db_type == "sqlite":
            raise NeedsOperator(
                "[syncer.to] names a server, and syncer.db-type is 'sqlite'",
                hint="set sink = sqlite:///file.db, or another db-type",
            )
        url = _of_to(syncer.db_type, syncer.to, os.environ if env is None else env)
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:  # The URL may hold a password, and is not repeated.
        raise NeedsOperator(
            f"unreadable downstream URL: {error}",
            hint="write mysql://user:password@host:port/ and percent-encode special characters",
        ) from error
    if syncer.db_type and (syncer.db_type == "sqlite") != (scheme == "sqlite"):
        raise NeedsOperator(
            f"syncer.db-type is {syncer.db_type!r}, and the sink is of type {scheme!r}",
            hint="leave db-type out: the sink's URL tells it",
        )
    told = {"sql-mode": syncer.sql_mode} if syncer.sql_mode else {}
    if syncer.loopback_control:
        if scheme == "sqlite":
            raise NeedsOperator(
                "loopback-control is on, and SQLite is nobody's upstream",
                hint="only a MySQL, MariaDB or TiDB downstream can send changes back",
            )
        told["loopback-channel"] = str(syncer.channel_id)
    told |= more or {}
    if not told or scheme == "sqlite":
        return url
    return url + ("&" if urlsplit(url).query else "?") + urlencode(told)


def _of_to(db_type: str, to: ToConfig, env: Mapping[str, str]) -> str:
    port = to.port or env.get("MYSQL_PORT", 3306)
    host = to.host or env.get("MYSQL_HOST", "127.0.0.1")
    user = to.user or env.get("MYSQL_USER", "root")
    password = to.password or ("" if to.password_file else env.get("MYSQL_PSWD", ""))
    if to.password and to.password_file:
        raise NeedsOperator(
            "[syncer.to] has both password and password-file", hint="leave one of them out"
        )
    options = {
        "checkpoint-schema": to.checkpoint.schema,
        "checkpoint-table": to.checkpoint.table,
        "password-file": to.password_file,
        "params": ",".join(to.params),
        "read-timeout": f"{to.read_timeout:g}" if to.read_timeout else "",
        "ssl-ca": to.security.ssl_ca,
        "ssl-cert": to.security.ssl_cert,
        "ssl-key": to.security.ssl_key,
        "ssl-verify": to.security.ssl_verify.replace(FULL, ""),
    }
    account = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    host = f"[{host}]" if ":" in host else host
    url = f"{db_type or 'mysql'}://{account}@{host}:{port}/"
    told = urlencode({key: value for key, value in options.items() if value})
    return f"{url}?{told}" if told else url

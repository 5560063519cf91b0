"""Compatibility: how the keys, flags and variables of TiDB-Binlog's own Drainer are handled.

    drainer.toml            flag                     variable
    [syncer] txn-batch      -txn-batch 50            BINLOG_SERVER_TXN_BATCH       there
    [apply] txn-batch       --apply-txn-batch=50     DRAINER_APPLY_TXN_BATCH       here

`penstock.settings.compat` explains the answers.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from drainer.settings.config import DrainerConfig
from penstock.settings.compat import Answer, Met, Refused, Renamed, Translation, is_true
from penstock.settings.load import read_settings

OLD_PREFIX, PREFIX = "BINLOG_SERVER", "DRAINER"


def _decrypted(text: str) -> str:
    from penstock.security.encrypted_passwords import decrypted  # Needs a separate package.

    return decrypted(text, os.environ) if text else ""


_ONE_PLACE = "the checkpoint moves in the downstream's own transactions, so it is kept there;"
_ONE_PLACE += " schema and table are free (syncer.to.checkpoint)"
_NO_ZOOKEEPER = "Kafka's clients do not ask ZooKeeper: name the brokers by kafka-addrs, or in the"
_NO_ZOOKEEPER += " sink's URL, sink = kafka://host:9092/?format=tidb-binlog"
_NO_ORACLE = "there is no output to Oracle; use sink = mysql://… or sqlite:///…"
_NO_PUSH = "nothing is pushed: Prometheus fetches /metrics at status-addr"
_ORDER = "changes of one row always keep their order; for whole transactions in theirs set"
_ORDER += " apply.dispatch = false"

KEYS: dict[str, Answer] = {
    "detect-interval": Met(
        "Pumps announce themselves, and are listed every second: the order of the merge relies"
        " on it"
    ),
    "pd-urls": Renamed("etcd-urls", also="pd-address"),
    "compressor": Met("streams are not compressed", ("",)),
    "sql-mode": Renamed("syncer.sql-mode"),
    "cache-binlog-count": Met("what waits is bounded in bytes, to 16 MiB", ("",)),
    "metrics-addr": Refused(_NO_PUSH),
    "metrics-interval": Refused(_NO_PUSH, ("", 0, "0", 15, "15")),
    "log-rotate": Met("it had none in TiDB-Binlog either; logrotate does it", ("",)),
    "syncer.ignore-txn-commit-ts": Renamed("ignore-txn-commit-ts"),
    "syncer.txn-batch": Renamed("apply.txn-batch"),
    "syncer.worker-count": Renamed("apply.worker-count"),
    "syncer.safe-mode": Renamed("apply.safe-mode"),
    "syncer.enable-dispatch": Renamed("apply.dispatch"),
    "syncer.disable-dispatch": Renamed("apply.dispatch", lambda value: not is_true(value)),
    "syncer.enable-detect": Met(_ORDER, (True, "true", "1")),
    "syncer.disable-detect": Met(_ORDER, (False, "false", "0")),
    "syncer.load-schema-snapshot": Met(
        "the Drainer keeps snapshots of the schema in its data-dir by itself", (False, "false", "0")
    ),
    "syncer.case-sensitive": Renamed("filter.case-sensitive"),
    "syncer.relay.log-dir": Renamed("relay.log-dir"),
    "syncer.relay.max-file-size": Renamed("relay.max-file-size"),
    "syncer.to.encrypted_password": Renamed("syncer.to.password", _decrypted),
    "syncer.to.sync-mode": Refused(
        "columns that the downstream has besides are fine in any case; those that it lacks must be"
        " added there (ALTER TABLE … ADD COLUMN), and a strict mode is left with sql-mode",
        (0, 1),
    ),
    "syncer.to.merge": Renamed(
        "apply.strategy", lambda value: "merge" if is_true(value) else "statements"
    ),
    "syncer.to.security.cert-allowed-cn": Refused(
        "the downstream's certificate must bear its host name", ([],)
    ),
    "syncer.to.checkpoint.type": Refused(_ONE_PLACE, ("", "mysql", "tidb", "mariadb")),
    "syncer.to.zookeeper-addrs": Refused(_NO_ZOOKEEPER),
    "syncer.to.kafka-version": Met("client and brokers agree on versions by themselves"),
    "syncer.to.kafka-max-messages": Met("what waits to be sent is bounded in bytes"),
    **{
        f"syncer.to.{place}oracle-{name}": Refused(_NO_ORACLE)
        for name in ("service-name", "connect-string")
        for place in ("", "checkpoint.")
    },
    **{
        f"syncer.to.checkpoint.{name}": Refused(_ONE_PLACE, ("", 0))
        for name in (
            "host", "port", "user", "password", "encrypted_password", "encrypted-password",
            "security.ssl-ca", "security.ssl-cert", "security.ssl-key", "security.cert-allowed-cn",
        )
    },
}  # fmt: skip
"""Keys of its drainer.toml that are not ours under the same name, sections before them."""

FLAGS = {
    **{
        name: name
        for name in (
            "node-id", "addr", "advertise-addr", "data-dir", "detect-interval", "pd-urls",
            "log-file", "initial-commit-ts", "synced-check-time", "compressor",
            "cache-binlog-count", "metrics-addr", "metrics-interval", "log-rotate", "config",
        )
    },
    **{
        name: f"syncer.{name}"
        for name in (
            "ignore-schemas", "txn-batch", "loopback-control", "sync-ddl", "channel-id",
            "enable-dispatch", "disable-dispatch", "enable-detect", "disable-detect", "safe-mode",
            "load-schema-snapshot",
        )
    },
    "L": "log-level",
    "c": "syncer.worker-count",
    "worker-count": "syncer.worker-count",
    "dest-db-type": "syncer.db-type",
    "relay-log-dir": "syncer.relay.log-dir",
    "relay-max-file-size": "syncer.relay.max-file-size",
    "V": "version",
}  # fmt: skip
"""Its flags, which may begin with one dash, with the key that each sets."""

_SWITCHES = frozenset({"loopback-control", "sync-ddl", "enable-dispatch", "disable-dispatch",
             "enable-detect", "disable-detect", "safe-mode", "load-schema-snapshot"})  # fmt: skip
_SWITCHED = frozenset(
    {"apply.dispatch", "apply.safe-mode", "syncer.loopback-control", "syncer.sync-ddl"}
)


def translation() -> Translation:
    return Translation(
        keys=KEYS,
        flags=FLAGS,
        prefixes=(OLD_PREFIX, PREFIX),
        switches=_SWITCHES,
        switched=_SWITCHED,
        opposites={"syncer.enable-dispatch": "syncer.disable-dispatch"},  # The older flag.
        gathered="syncer.to.params",
    )


_PASSWORD, _ENCRYPTED = "syncer.to.password", "syncer.to.encrypted_password"


def load_settings(
    argv: Sequence[str],
    *,
    prog: str,
    env: Mapping[str, str] | None = None,
    required: Sequence[Collection[str]] = (),
) -> tuple[DrainerConfig, list[str]]:
    """Return the settings from every source, and the lines for the log about them.

    At least one key of each group in `required` must be given. Exits for --help and --version.
    Raises `NeedsOperator` as `read_settings` does.
    """
    translated = translation()

    def rewritten(values: dict[str, Any]) -> dict[str, Any]:
        # A non-empty encrypted password takes precedence.
        other = _PASSWORD if values.get(_ENCRYPTED) else _ENCRYPTED
        return translated.document({key: v for key, v in values.items() if key != other})

    config = read_settings(
        DrainerConfig,
        translated.arguments(argv),
        prog=prog,
        env_prefix=PREFIX,
        env=translated.environment(os.environ if env is None else env),
        rewrite=rewritten,
        required=required,
    )
    return config, translated.notes

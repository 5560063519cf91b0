"""The keys, flags and variables of TiDB-Binlog's own Drainer, and what becomes of each here.

    drainer.toml            flag                     variable
    [syncer] txn-batch      -txn-batch 50            BINLOG_SERVER_TXN_BATCH       there
    [apply] txn-batch       --apply-txn-batch=50     DRAINER_APPLY_TXN_BATCH       here

Those that bear the same name here are not in the table. For the rest there are three answers:
another name; accepted, because what it asks for is so anyway, with a line in the log; or an error
that names what to use instead, but for a value that changes nothing. Nothing is dropped in silence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drainer.config import DrainerConfig
from penstock.config import load
from penstock.errors import NeedsOperator

OLD_PREFIX, PREFIX = "BINLOG_SERVER", "DRAINER"


@dataclass(frozen=True, slots=True)
class Renamed:
    """The same under another key; `convert` makes the value one of that key."""

    key: str
    convert: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, slots=True)
class Met:
    """Accepted without effect: `why` it is so anyway."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Not there: `hint` names what replaces it; values among `harmless` ask for nothing."""

    hint: str
    harmless: tuple[Any, ...] = ("",)


Answer = Renamed | Met | Refused


def _is_true(value: Any) -> bool:
    if isinstance(value, bool) or str(value).lower() in ("true", "false", "1", "0"):
        return str(value).lower() in ("true", "1")
    raise NeedsOperator(f"{value!r} is neither true nor false", hint="write true or false")


_SECRET = "put the password itself into a file that only the Drainer can read: password-file, or"
_SECRET += " set MYSQL_PSWD"
_ONE_PLACE = "the checkpoint moves in the downstream's own transactions, so it is kept there;"
_ONE_PLACE += " schema and table are free (syncer.to.checkpoint)"
_NO_FILES = (
    "there is no output to files; use sink = mysql://… or sqlite:///…, and [relay] for a log"
)
_NO_KAFKA = "there is no output to Kafka; use sink = mysql://… or sqlite:///…"
_NO_ORACLE = "there is no output to Oracle; use sink = mysql://… or sqlite:///…"
_NO_PUSH = "nothing is pushed: Prometheus fetches /metrics at status-addr"
_ORDER = "changes of one row always keep their order; for whole transactions in theirs set"
_ORDER += " apply.dispatch = false"

KEYS: dict[str, Answer] = {
    "detect-interval": Met("Pumps announce themselves, and are listed every heartbeat-interval-s"),
    "pd-urls": Renamed("etcd-urls"),
    "synced-check-time": Met("/status says Synced as soon as all up to the present is downstream"),
    "compressor": Refused("streams are not compressed; put Drainer and Pumps near to each other"),
    "sql-mode": Renamed("syncer.sql-mode"),
    "cache-binlog-count": Refused("what waits is bounded in bytes: buffer-bytes"),
    "metrics-addr": Refused(_NO_PUSH),
    "metrics-interval": Refused(_NO_PUSH, ("", 0, "0", 15, "15")),
    "log-rotate": Refused("use logrotate, or log to stderr and let the service manager rotate"),
    "syncer.ignore-txn-commit-ts": Renamed("ignore-txn-commit-ts"),
    "syncer.txn-batch": Renamed("apply.txn-batch"),
    "syncer.worker-count": Renamed("apply.worker-count"),
    "syncer.safe-mode": Renamed("apply.safe-mode"),
    "syncer.enable-dispatch": Renamed("apply.dispatch"),
    "syncer.disable-dispatch": Renamed("apply.dispatch", lambda value: not _is_true(value)),
    "syncer.enable-detect": Refused(_ORDER, (True, "true", "1")),
    "syncer.disable-detect": Refused(_ORDER, (False, "false", "0")),
    "syncer.load-schema-snapshot": Refused(
        "the Drainer keeps snapshots of the schema in its data-dir by itself", (False, "false", "0")
    ),
    "syncer.case-sensitive": Renamed("filter.case-sensitive"),
    "syncer.relay.log-dir": Renamed("relay.log-dir"),
    "syncer.relay.max-file-size": Renamed("relay.max-file-size"),
    "syncer.to.encrypted_password": Refused(_SECRET),
    "syncer.to.encrypted-password": Refused(_SECRET),
    "syncer.to.sync-mode": Refused(
        "every column must be there: add those that the downstream lacks (more of them are fine)",
        (0, 1),
    ),
    "syncer.to.read-timeout": Met("a dead downstream is noticed; a statement may take hours"),
    "syncer.to.merge": Renamed(
        "apply.strategy", lambda value: "merge" if _is_true(value) else "statements"
    ),
    "syncer.to.dir": Refused(_NO_FILES),
    "syncer.to.compression": Refused(_NO_FILES),
    "syncer.to.retention-time": Refused(_NO_FILES, (0,)),
    "syncer.to.security.cert-allowed-cn": Refused(
        "the downstream's certificate must bear its host name", ([],)
    ),
    "syncer.to.checkpoint.type": Refused(_ONE_PLACE, ("", "mysql", "tidb", "mariadb")),
    **{
        f"syncer.to.{name}": Refused(_NO_KAFKA)
        for name in (
            "zookeeper-addrs", "kafka-addrs", "kafka-version", "kafka-max-messages",
            "kafka-max-message-size", "kafka-client-id", "topic-name",
        )
    },
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
    "dest-db-type": "syncer.db-type",
    "relay-log-dir": "syncer.relay.log-dir",
    "relay-max-file-size": "syncer.relay.max-file-size",
    "V": "version",
}  # fmt: skip
"""Its flags, which may begin with one dash, and the key that each sets."""

_SWITCHES = {"loopback-control", "sync-ddl", "enable-dispatch", "disable-dispatch",
             "enable-detect", "disable-detect", "safe-mode", "load-schema-snapshot"}  # fmt: skip
_SWITCHED = {"apply.dispatch", "apply.safe-mode", "syncer.loopback-control", "syncer.sync-ddl"}
_PARAMS = "syncer.to.params"


@dataclass(slots=True)
class Translation:
    """From the original's settings to ours; `notes` is what the log should say about it."""

    notes: list[str]

    def document(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of a file, sections before them, under our names.

        Raises `NeedsOperator` for what is not there, and for two keys that say the same.
        """
        made: dict[str, Any] = {}
        params = []
        if "syncer.disable-dispatch" in values:  # It went before the other one.
            values = {k: v for k, v in values.items() if k != "syncer.enable-dispatch"}
        for key, value in values.items():
            if key.startswith(f"{_PARAMS}."):
                params.append(f"{key.removeprefix(_PARAMS + '.')}={value}")
                continue
            for new, converted in self._answered(key, value):
                if new in made or (new != key and new in values):
                    raise NeedsOperator(f"{new} is set twice, as {key} too", hint="leave one out")
                made[new] = converted
        return {**made, _PARAMS: params} if params else made

    def arguments(self, argv: Sequence[str]) -> list[str]:
        """Return the command line under our names; ours are taken as they are."""
        made, rest = [], list(argv)
        while rest:
            token = rest.pop(0)
            name, is_joined, value = token.lstrip("-").partition("=")
            if not token.startswith("-") or name not in FLAGS:
                made.append(token)
                continue
            if name == "V":
                made.append("--version")
                continue
            if not is_joined:
                if name in _SWITCHES:
                    value = "true"
                elif rest:
                    value = rest.pop(0)
                else:
                    raise NeedsOperator(f"{token} has no value", hint=f"write {token}=…")
            made += [_flag(*each) for each in self._answered(FLAGS[name], value)]
        return made

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with the original's variables under our names too."""
        made = dict(env)
        for flag, key in FLAGS.items():
            name = f"{OLD_PREFIX}_{flag.upper().replace('-', '_')}"
            if name in env and len(flag) > 1:
                for new, value in self._answered(key, env[name]):
                    made.setdefault(f"{PREFIX}_{_upper(new)}", str(value))
        return made

    def _answered(self, key: str, value: Any) -> Iterator[tuple[str, Any]]:
        answer = KEYS.get(key)
        if answer is None:
            yield key, value
        elif isinstance(answer, Renamed):
            yield answer.key, answer.convert(value)
        elif isinstance(answer, Met):
            self.notes.append(f"{key} has no effect: {answer.why}")
        elif not any(value == each and type(value) is type(each) for each in answer.harmless):
            raise NeedsOperator(f"{key} is not supported", hint=answer.hint)


def load_settings(
    argv: Sequence[str], *, prog: str, env: Mapping[str, str] | None = None
) -> tuple[DrainerConfig, list[str]]:
    """Return the settings from every source, and what to tell the log about them.

    Exits for --help and --version. Raises `NeedsOperator` for what cannot be.
    """
    translation = Translation([])
    config = load(
        DrainerConfig,
        translation.arguments(argv),
        prog=prog,
        env_prefix=PREFIX,
        env=translation.environment(os.environ if env is None else env),
        rewrite=translation.document,
    )
    return config, translation.notes


def _flag(key: str, value: Any) -> str:
    name = key.replace(".", "-")
    if key in _SWITCHED:
        return f"--{name}" if _is_true(value) else f"--no-{name}"
    return f"--{name}={value}"


def _upper(key: str) -> str:
    return key.upper().replace(".", "_").replace("-", "_")

"""Parts: the programs of `penstock run`, their settings, and the order in which they start.

    etcd ──> Pump ──> Drainer
                 └──> source (with --from mysql://…)
         └──> console

Everything is below one folder, which only the account of `penstock run` may read:

    conf/     pump.toml, drainer.toml and source.toml, written at each start, and files of passwords
    log/      a file for each part, to which the part's output is appended
    etcd/ pump/ drainer/ source/    what the parts keep
    run.json  the state of the parts, for `penstock run status`
    run.lock  locked while `penstock run` runs

The settings are those of the single programs. `penstock pump --config conf/pump.toml` and so on
therefore continue the same cluster without `penstock run`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from drainer.settings.targets import MysqlTarget, target_of
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.local.etcd import EtcdServer
from penstock.local.process import free_port, python_module
from penstock.settings.setting import without_password
from pumpclient.mysql.protocol.server import ServerAddress

ETCD, PUMP, DRAINER, SOURCE, CONSOLE = "etcd", "pump", "drainer", "source", "console"
ROLES = (PUMP, DRAINER, SOURCE)
"""The parts with a file of settings."""
_PORTS = {ETCD: 2379, PUMP: 8250, DRAINER: 8249, SOURCE: 9251, CONSOLE: 9252}
_PAGES_ABOVE = 1000
_TABLE = Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The pipeline that the operator asks for."""

    upstream: ServerAddress | None
    """The server to replicate from; None: programs with pumpclient write."""
    downstream: str
    """The URL of a Drainer's sink."""
    folder: Path
    etcd_urls: str = ""
    """An etcd that runs already; empty: one is started."""
    with_console: bool = True
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """More settings by role, with the keys of the role's file of settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A program that runs until it is stopped."""

    name: str
    command: Sequence[str]
    log: Path
    after: tuple[str, ...] = ()
    """The parts that must be ready before this one starts."""
    address: str = ""
    """host:port at which others reach it."""
    pages: str = ""
    """The URL of its pages; empty: it has none."""
    health: str = ""
    """A URL that answers once the part is ready; empty: the part notifies its supervisor."""


def parts_of(choice: Choice) -> list[Part]:
    """Return the parts in the order of their start, and write their settings.

    Raises `NeedsOperator` for settings of a part that does not exist.
    """
    folder = choice.folder
    for each in ("conf", "log"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    made = []
    etcd_urls = choice.etcd_urls
    if not etcd_urls:
        server = EtcdServer(folder / ETCD, port=_port(ETCD))
        etcd_urls = server.url
        made.append(
            Part(
                name=ETCD, command=server.command, log=folder / "log/etcd.log",
                address=server.url, health=server.health_url,
            )
        )  # fmt: skip
    for role, settings in settings_of(choice, etcd_urls).items():
        path = folder / "conf" / f"{role}.toml"
        path.write_text(toml_of(settings))
        after = {PUMP: (ETCD,), DRAINER: (PUMP,), SOURCE: (PUMP,)}[role]
        module = {PUMP: "pump", DRAINER: "drainer", SOURCE: "pumpclient.mysql.source"}[role]
        made.append(
            Part(
                name=role,
                command=python_module(module, "--config", str(path)),
                log=folder / "log" / f"{role}.log",
                after=tuple(each for each in after if each != ETCD or not choice.etcd_urls),
                address=str(settings.get("addr", "")),
                pages=f"http://{settings['status-addr']}/",
            )
        )
    if choice.with_console:
        address = f"127.0.0.1:{_port(CONSOLE)}"
        command = python_module("penstock.ctl.console", "--etcd-urls", etcd_urls, "--addr", address)
        made.append(
            Part(
                name=CONSOLE, command=command, log=folder / "log/console.log", after=(PUMP,),
                address=address, pages=f"http://{address}/",
            )
        )  # fmt: skip
    return made


def settings_of(choice: Choice, etcd_urls: str) -> dict[str, dict[str, Any]]:
    """Return the content of each role's file of settings; write the files of passwords."""
    folder = choice.folder
    made: dict[str, dict[str, Any]] = {}
    for role in ROLES:
        if role == SOURCE and choice.upstream is None:
            continue
        port = _port(role, pages=role != SOURCE)
        made[role] = {
            "etcd-urls": etcd_urls,
            "data-dir": str(folder / role),
            "status-addr": f"127.0.0.1:{port if role == SOURCE else port + _PAGES_ABOVE}",
        }
        if role != SOURCE:
            made[role] |= {"addr": f"127.0.0.1:{port}", "node-id": f"{role}-1"}
    made[DRAINER]["sink"] = _without_password(choice.downstream, folder / "conf")
    if (server := choice.upstream) is not None:
        secret = folder / "conf/upstream.password"
        secret.write_text(f"{server.password}\n")
        # The settings of a Drainer may leave rows out, which a repair would bring back.
        is_alike = not {"filter", "syncer"} & choice.more.get(DRAINER, {}).keys()
        is_compared = isinstance(target_of(choice.downstream), MysqlTarget)
        made[SOURCE] |= {
            "mode": "all",
            "cascades": "stop" if is_compared and not is_alike else "repair",
            "source": {
                "host": server.host, "port": server.port, "user": server.user,
                "password-file": str(secret),
            },
            "relay": {"dir": str(folder / SOURCE / "relay")},
        }  # fmt: skip
    unknown = set(choice.more) - set(made)
    if unknown:
        raise NeedsOperator(
            f"no part {min(unknown)!r} in this pipeline",
            f"the tables of the settings are {', '.join(made)}",
            Code.SETTING_VALUE,
        )
    return {role: _merged(settings, choice.more.get(role, {})) for role, settings in made.items()}


def _merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(base)
    for key, value in more.items():
        name = key.replace("_", "-")
        is_table = isinstance(value, _TABLE) and isinstance(made.get(name), _TABLE)
        made[name] = _merged(made[name], value) if is_table else value
    return made


def _without_password(url: str, conf: Path) -> str:
    """Return the downstream's URL with a file of its password instead of the password."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    secret = conf / "downstream.password"
    secret.write_text(f"{unquote(parts.password)}\n")
    joint = "&" if parts.query else "?"
    return f"{without_password(url, '')}{joint}password-file={quote(str(secret))}"


def _port(part: str, *, pages: bool = False) -> int:
    """Return the usual port of a part, or a free one if that is taken."""
    usual = _PORTS[part]
    with suppress(OSError):
        for port in (usual, usual + _PAGES_ABOVE) if pages else (usual,):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        return usual
    return free_port()


def toml_of(settings: Mapping[str, Any]) -> str:
    """Return settings as TOML; tables come last, as TOML requires."""
    return "".join(f"{line}\n" for line in _lines(settings, ()))


def _lines(settings: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    tables: list[tuple[str, Any]] = []
    for key, value in settings.items():
        if isinstance(value, _TABLE) or _is_tables(value):
            tables.append((key, value))
        else:
            yield f"{key} = {_value(value)}"
    for key, value in tables:
        name = ".".join((*path, key))
        for each in value if _is_tables(value) else (value,):
            yield ""
            yield f"[[{name}]]" if _is_tables(value) else f"[{name}]"
            yield from _lines(each, (*path, key))


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, _TABLE) for v in value)


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    # JSON's texts, numbers and truth values are TOML's, too.
    return json.dumps(value, ensure_ascii=False)

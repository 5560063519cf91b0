"""A changing command has no default target, and the commands that a stopped node shows have all."""

import argparse
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from drainer.__main__ import main as drainer
from drainer.ddl.follower import with_overrides
from drainer.ddl_command import _ARGUMENTS
from drainer.settings.compat import load_settings
from drainer.settings.config import DOWNSTREAM_KEYS, DrainerConfig
from drainer.settings.targets import KafkaTarget
from penstock.codes import Code
from penstock.ctl.commands import command_parser as ctl_parser
from penstock.ctl.commands import main as ctl
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.errors import NeedsOperator
from pumpclient.mysql.relay.layout import FileName, Location
from pumpclient.mysql.source.__main__ import main as source
from pumpclient.mysql.source.command import command_parser as source_parser
from pumpclient.mysql.source.command import load as load_source
from pumpclient.mysql.source.state.overrides import choices
from pumpclient.mysql.translate.outputs import Refused, place_text

MAINS = {"ctl": ctl, "source": source, "drainer": drainer}
DDL = (("track", "7"), ("replace", "7", "DROP TABLE t"), ("skip", "7"), ("undo", "7"))
OTHERS = """
ctl pause-pump p
ctl pause-drainer d
ctl offline-pump p
ctl offline-drainer d
ctl update-pump p --state paused
ctl update-drainer d --state paused
ctl drain p
ctl move-log p --to q
ctl hand-over d
ctl lost-pump p --accept-loss-after 7
ctl adopt-log p --pump q --disk 1 --epoch 1 --empty
ctl lost-ddl 7 --confirm 7
ctl trigger-gc p
ctl scrub p
source pause
source resume
source skip
source replace 'DROP TABLE t'
source inject 'DROP TABLE t'
source skip-table shop.t
source reload shop.t
source reload --all
source continue --accept-gap
source revoke shop.t
source purge inactive
"""
VERBS = [
    *(("drainer", "ddl", *words, flag) for words in DDL for flag in ("--sink=sqlite:///x.db",)),
    *(("drainer", "ddl", *words, flag) for words in DDL for flag in ("--etcd-urls=127.0.0.1:1",)),
    *(tuple(shlex.split(line)) for line in OTHERS.split("\n") if line),
]


READING = {
    *("ctl pumps", "ctl drainers", "ctl status", "ctl timestamp"),
    *("ctl generate_meta", "ctl encrypt", "ctl dump", "source status", "drainer list"),
}


def names_of(parser: argparse.ArgumentParser) -> set[str]:
    (found,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return set(found.choices)


def test_every_command_changes_something_and_is_in_the_table_or_only_reads() -> None:
    found = {f"ctl {name}" for name in names_of(ctl_parser())}
    found |= {f"source {name}" for name in names_of(source_parser())}
    found |= {f"drainer {name}" for name in _ARGUMENTS}
    table = {f"{w[0]} {w[2 if w[0] == 'drainer' else 1]}" for w in VERBS}
    assert found == table | READING
    assert not table & READING


def lacking(words: Sequence[str]) -> str:
    """Return the setting whose absence the command must name."""
    if words[0] == "drainer":
        return "sink" if words[-1].startswith("--etcd") else "etcd-urls"
    return {"ctl": "--etcd-urls", "source": "--status-addr"}[words[0]]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if re.match("PENSTOCK_|DRAINER_|MYSQL_|KAFKA_|BINLOG_", name):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_changing_command_without_a_target_names_the_setting_and_makes_nothing(
    words: Sequence[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert MAINS[words[0]](words[1:]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert lacking(words) in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("verb", "missing"),
    [
        (("skip-table", "shop.t", "--status-addr=127.0.0.1:1"), "etcd-urls"),
        (("reload", "--all"), "source-id"),
    ],
)
def test_a_stopped_source_is_changed_only_if_its_settings_name_it_and_its_etcd(
    verb: Sequence[str], missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {"etcd-urls": "127.0.0.1:1", "source-id": "s"}
    del named[missing]
    (tmp_path / "s.toml").write_text("".join(f'{k} = "{v}"\n' for k, v in named.items()))
    assert source([*verb, "--config", "s.toml"]) == 2
    assert f"penstock source needs {missing}" in capsys.readouterr().err


FILE = """
sink = "mysql://me:hidden@db/"
etcd-urls = "e:1"
data-dir = "/d"
"""
LOCAL = 'sink = "sqlite:///near.db"\n'
TO = '[syncer]\ndb-type = "mysql"\n[syncer.to]\nhost = "db"\n'
CERTIFICATES = {f"DRAINER_SECURITY_SSL_{each}": f"{each}.pem" for each in ("CA", "CERT", "KEY")}
WAYS: dict[str, tuple[str, Sequence[str], Mapping[str, str], str]] = {
    "nothing is given": ("", [], {}, ""),
    "flags": ("", ["--sink=mysql://me:hidden@db/?sql-mode=ANSI", "--etcd-urls=e:1"], {}, "MYSQL"),
    "environment": (
        "",
        [],
        {"DRAINER_SINK": "mysql://me:hidden@db/", "PENSTOCK_ETCD_URLS": "e:1,f:1"},
        "MYSQL",
    ),
    "the old prefix": ("", ["--sink=delta:lake?interval=5s"], {"BINLOG_SERVER_PD_URLS": "p:1"}, ""),
    "a file": (FILE, [], {}, ""),
    "a file in the environment": (FILE, [], {"DRAINER_CONFIG": "d.toml"}, ""),
    "a file and another etcd": (FILE, ["--etcd-urls=f:1"], {"PENSTOCK_ETCD_URLS": "g:1"}, ""),
    "a file and another sink": (FILE, [], {"DRAINER_SINK": "mysql://you:hidden@db2/"}, "MYSQL"),
    "a file with a relative sink": (LOCAL, [], {"PENSTOCK_ETCD_URLS": "e:1"}, ""),
    "a file without a password": (
        'sink = "mysql://me@db/"\n',
        [],
        {"MYSQL_PSWD": "hidden"},
        "MYSQL",
    ),
    "the section of a downstream": (TO, [], {"MYSQL_USER": "me", "MYSQL_PSWD": "hidden"}, "MYSQL"),
    "variables of a downstream": (
        "",
        ["--syncer-db-type=mysql", "--syncer-to-password=hidden"],
        {"MYSQL_HOST": "db", "MYSQL_PORT": "4000"},
        "MYSQL",
    ),
    "variables of a Kafka": ("", ["--syncer-db-type=kafka"], {"KAFKA_ADDRS": "k:1"}, ""),
    "a folder": ("", ["--syncer-db-type=file", "--syncer-to-dir=out"], {}, ""),
    "a folder in a file": ('[syncer]\ndb-type = "file"\n[syncer.to]\ndir = "out"\n', [], {}, ""),
    "certificates": ("", ["--sink=sqlite:///x.db"], CERTIFICATES, ""),
    "a Kafka": ("", ["--sink=kafka://me:hidden@k:1/"], {}, "password-file=FILE"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_command_that_a_stopped_drainer_shows_finds_the_same_downstream_from_anywhere(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, argv, variables, hint = WAYS[way]
    if text:
        (tmp_path / "d.toml").write_text(text)
        argv = [*argv, *([] if "DRAINER_CONFIG" in variables else ["--config=d.toml"])]
    with monkeypatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        config, _ = load_settings(argv, prog="drainer")
        meant, flags, note = found_by(config), config.as_flags, config.password_hint
    error = NeedsOperator("no", "replace it", Code.DDL_UNSUPPORTED)
    change = SchemaChange(job=plan_ddl("CREATE DATABASE d", None, Catalog(), lambda: 1)[0])
    refused = with_overrides(error, 7, change, flags=flags, password_hint=note)
    shown = f"{refused} {refused.choices}"
    assert "hidden" not in shown
    assert "***" not in shown
    assert hint in note
    assert bool(note) == bool(hint)
    assert note in str(refused)
    found = re.findall(r"`penstock drainer ddl (\w+)(.*?)`", str(refused))
    assert {verb for verb, _ in found} == set(_ARGUMENTS)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    if "MYSQL" in hint:
        monkeypatch.setenv("MYSQL_PSWD", "hidden")
    for verb, rest in found:
        words = shlex.split(rest)[_ARGUMENTS[verb] :]
        if way == "a Kafka":
            words = [w + "?password-file=f" * w.startswith("--sink") for w in words]
        needed = (DOWNSTREAM_KEYS, ("etcd-urls",))
        config, _ = load_settings(words, prog="ddl", required=needed)
        assert found_by(config) == meant, verb


def found_by(config: DrainerConfig) -> object:
    target, tls = config.downstream, config.security.ssl_ca
    if target.local is not None:
        target = replace(target, path=str(target.local.absolute()))
    if isinstance(target, KafkaTarget):
        target = replace(target, user="", password="", password_file="")
    return config.etcd_urls, config.pd_address, target, Path(tls).absolute() if tls else None


@pytest.mark.parametrize("status_addr", ["127.0.0.1:7", "off"])
def test_a_command_that_a_stopped_source_shows_finds_it_from_anywhere(
    status_addr: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text('source-id = "s"\n')
    monkeypatch.setenv("MYSQL_SOURCE_CONFIG", "s.toml")
    monkeypatch.setenv("MYSQL_SOURCE_SOURCE_PASSWORD", "hidden")
    flags = load_source([f"--status-addr={status_addr}"]).as_flags
    error = NeedsOperator("no", "replace it", Code.DDL_UNSUPPORTED)
    place = Location(0, FileName("f", 1), 4)
    refused = Refused(error, ("shop", "t"), place=place, is_statement=True)
    shown = choices(refused, [place_text(place)], flags=flags)
    monkeypatch.chdir("/")
    verbs = set()
    for line in shown:
        command, _, _ = line.removeprefix("penstock source ").partition(": ")
        asked = source_parser().parse_args(shlex.split(command))
        verbs.add(asked.command)
        assert asked.config == str(tmp_path / "s.toml")
        assert asked.status_addr == ("" if status_addr == "off" else status_addr)
    assert verbs == {"revoke", "replace", "inject", "reload", "skip-table", "skip"}
    assert "hidden" not in str(shown)

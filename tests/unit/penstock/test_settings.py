"""Settings come from four places, and a typo in any of them is an error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.errors import NeedsOperator
from penstock.settings.load import read_settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    sync_log: bool = True
    segment_bytes: int = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node for the tests."""

    addr: str = "127.0.0.1:1"
    data_dir: Path = Path("data")
    heartbeat_s: float = 2.0
    retries: int = 3
    etcd_urls: tuple[str, ...] = ("127.0.0.1:2379",)
    node_id: str | None = None
    log_level: str = field(default="info", metadata={"flag": "-L", "help": "how much to log"})
    storage: Storage = field(default_factory=Storage)


def load(argv: list[str] | None = None, env: dict[str, str] | None = None) -> Node:
    return read_settings(Node, argv or [], prog="node", env_prefix="NODE", env=env or {})


def written(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return ["--config", str(path)]


def test_without_any_source_the_defaults_hold() -> None:
    assert load() == Node()


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'addr = "file:1"\nretries = 7\nheartbeat-s = 9\n')
    env = {"NODE_ADDR": "env:1", "NODE_RETRIES": "8"}
    assert load([*file, "--addr", "flag:1"], env) == Node(addr="flag:1", retries=8, heartbeat_s=9.0)


def test_sections_lists_sizes_and_durations_are_understood(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        'etcd-urls = ["a:1", "b:2"]\nheartbeat-s = "250ms"\n'
        '[storage]\nsync-log = false\nsegment-bytes = "64 MiB"\n',
    )
    assert load(file) == Node(
        etcd_urls=("a:1", "b:2"),
        heartbeat_s=0.25,
        storage=Storage(sync_log=False, segment_bytes=64 << 20),
    )
    assert load(["--no-storage-sync-log", "--etcd-urls", "a:1,b:2"]).etcd_urls == ("a:1", "b:2")
    assert load(["-L", "debug"]).log_level == "debug"


def test_a_number_as_long_as_a_timestamp_keeps_every_digit(tmp_path: Path) -> None:
    assert load(["--retries", "470610750794629119"]).retries == 470610750794629119
    assert load(written(tmp_path, "retries = 470610750794629119\n")).retries == 470610750794629119


def test_an_unknown_key_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NeedsOperator, match=r"unknown key 'retrys' \(did you mean 'retries'\?\)"):
        load(written(tmp_path, "retrys = 3\n"))
    with pytest.raises(NeedsOperator, match=r"did you mean 'storage\.sync-log'"):
        load(written(tmp_path, "[storage]\nsynclog = true\n"))


def test_an_unknown_flag_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(NeedsOperator, match="did you mean --retries"):
        load(["--retrys", "3"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("retries = 1.5\n", "not a whole number"),
        ("retries = true\n", "is not a int"),
        ('heartbeat-s = "soon"\n', "not a duration"),
        ("addr = 5\n", "not text"),
        ('[storage]\nsync-log = "perhaps"\n', "neither true nor false"),
        ("addr = \n", "is not TOML"),
    ],
)
def test_a_value_of_the_wrong_kind_names_its_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(NeedsOperator, match=message):
        load(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NeedsOperator, match=r"nowhere\.toml"):
        load(["--config", str(tmp_path / "nowhere.toml")])


def test_version_and_help_go_to_stdout_and_end_well(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--version", "--help"):
        with pytest.raises(SystemExit) as stopped:
            load([flag])
        assert stopped.value.code == 0
    assert "node 0." in capsys.readouterr().out


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    table_pattern: str = ""
    events: tuple[str, ...] = ()
    is_strict: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    rule: tuple[Rule, ...] = ()
    named: dict[str, Rule] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ruled:
    """A node with rules."""

    addr: str = "a:1"
    filter: Rules = field(default_factory=Rules)


def ruled(tmp_path: Path, text: str) -> Ruled:
    return read_settings(Ruled, written(tmp_path, text), prog="node", env_prefix="NODE", env={})


def test_tables_in_arrays_and_by_name_become_rules(tmp_path: Path) -> None:
    text = '[[filter.rule]]\ntable-pattern = "t*"\n[[filter.rule]]\nevents = ["all ddl"]\n'
    text += '[filter.named.strict]\nis-strict = true\n[filter.named."a b"]\n'
    assert ruled(tmp_path, text).filter == Rules(
        rule=(Rule(table_pattern="t*"), Rule(events=("all ddl",))),
        named={"strict": Rule(is_strict=True), "a b": Rule()},
    )
    assert ruled(tmp_path, "[filter]\nrule = []\nnamed = {}\n") == Ruled()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[filter.rule]]\ntable-patern = "t"\n', r"rule\[1\]: unknown key 'table-patern' \(did"),
        ("[[filter.rule]]\nis-strict = 5\n", r"filter\.rule\[1\]: is-strict: 5 is neither"),
        ('[filter.rule]\ntable-pattern = "t"\n', "unknown key 'filter.rule.table-pattern'"),
        ("[filter]\nrule = 5\n", r"write it as \[\[filter\.rule\]\]"),
        ("[filter]\nrule = [5]\n", r"filter.rule\[1\] is 5 .it must be a table"),
        ('[filter]\nrule = "t"\n', r'in \[filter\], write rule = \[{ table-pattern = "t" }\]'),
        (
            "[filter]\nrule = []\n[[filter.rule]]\n",
            r"remove the line rule = … of \[filter\]: \[\[fil",
        ),
        ("[filter\n", "samples: penstock init DIR"),
        ("[filter.named.x]\nstrict = true\n", r"filter\.named\.x: unknown key 'strict'"),
    ],
)
def test_a_mistake_in_a_rule_names_rule_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(NeedsOperator, match=message):
        ruled(tmp_path, text)


@pytest.mark.parametrize(
    "text", ["retries = inf", "retries = nan", "heartbeat-s = inf", f'heartbeat-s = "{"9" * 400}h"']
)
def test_numbers_without_end_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(NeedsOperator, match=r"node\.toml:1: .* is not a"):
        load(written(tmp_path, text))


def test_the_flags_that_were_given_are_kept_without_secrets(tmp_path: Path) -> None:
    from drainer.settings.compat import load_settings

    file = tmp_path / "d.toml"
    file.write_text('node-id = "d-1"\n')
    argv = ["--config", str(file), "--sink=mysql://me:secret@db/", "--apply-safe-mode"]
    config, _ = load_settings(argv, prog="drainer", env={})
    assert config.given == (
        f"--config={file}",
        "--etcd-urls=127.0.0.1:2379",
        "--sink=mysql://me@db/",
        "--apply-safe-mode",
    )


@dataclass(frozen=True, kw_only=True)
class Smaller:
    REMOVED: ClassVar[Mapping[str, str]] = {"storage.block-bytes": "remove the key: it is 64 KiB"}

    storage: Storage = field(default_factory=Storage)


@pytest.mark.parametrize(
    ("argv", "env", "place"),
    [
        (["--config", "FILE"], {}, r"node.toml:2"),
        (["--storage-block-bytes=1"], {}, "--storage-block-bytes"),
        (["--no-storage-block-bytes"], {}, "--no-storage-block-bytes"),
        ([], {"NODE_STORAGE_BLOCK_BYTES": "1"}, "NODE_STORAGE_BLOCK_BYTES"),
    ],
)
def test_a_former_setting_is_refused_with_its_replacement(
    tmp_path: Path, argv: list[str], env: dict[str, str], place: str
) -> None:
    file = written(tmp_path, "[storage]\nblock-bytes = 1\n")[1]
    given = [file if word == "FILE" else word for word in argv]
    with pytest.raises(
        NeedsOperator, match=f"{place}: storage.block-bytes is no longer"
    ) as refused:
        read_settings(Smaller, given, prog="node", env_prefix="NODE", env=env)
    assert refused.value.hint == "remove the key: it is 64 KiB"

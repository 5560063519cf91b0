"""Every key and flag of TiDB-Binlog's Drainer is understood, or answered with what replaces it."""

from pathlib import Path

import pytest

from drainer.settings.compat import FLAGS, KEYS, load_settings, translation
from drainer.settings.config import DrainerConfig
from drainer.settings.targets import target_of
from penstock.errors import NeedsOperator
from penstock.security.encrypted_passwords import encrypted
from penstock.settings.compat import Met
from penstock.settings.setting import differing, without_password

HIDDEN = encrypted("s3cret", {})
# (key, a value that asks for something): the whole list of its configuration.
TOP = [
    ("node-id", '"n"'), ("addr", '"127.0.0.1:1"'), ("advertise-addr", '"h:1"'), ("data-dir", '"d"'),
    ("detect-interval", "10"), ("pd-urls", '"http://127.0.0.1:2379"'), ("log-level", '"debug"'),
    ("log-file", '"f"'), ("initial-commit-ts", "5"), ("synced-check-time", "7"),
    ("compressor", '"gzip"'), ("sql-mode", '"STRICT_TRANS_TABLES"'),
]  # fmt: skip
SECURITY = [
    ("ssl-ca", '"a"'),
    ("ssl-cert", '"a"'),
    ("ssl-key", '"a"'),
    ("cert-allowed-cn", '["a"]'),
]
SYNCER = [
    ("sql-mode", '"STRICT_TRANS_TABLES"'), ("ignore-txn-commit-ts", "[5]"),
    ("ignore-schemas", '"mysql,test"'), ("txn-batch", "7"), ("loopback-control", "false"),
    ("sync-ddl", "false"), ("channel-id", "3"), ("worker-count", "3"), ("db-type", '"mysql"'),
    ("db-type", '"tidb"'), ("db-type", '"file"'), ("db-type", '"pb"'), ("db-type", '"kafka"'),
    ("db-type", '"oracle"'), ("enable-dispatch", "false"), ("disable-dispatch", "true"),
    ("enable-detect", "false"), ("disable-detect", "true"), ("safe-mode", "true"),
    ("load-schema-snapshot", "true"), ("replicate-do-db", '["~^b.*"]'), ("case-sensitive", "true"),
    ("ignore-table", '[{db-name = "a", tbl-name = "b"}]'),
    ("replicate-do-table", '[{db-name = "a", tbl-name = "b"}]'),
    ("table-migrate-rule", '[{source = {schema = "a", table = "b"}, '
                           'target = {schema = "c", table = "d"}}]'),
    ("relay.log-dir", '"r"'), ("relay.max-file-size", "4096"),
]  # fmt: skip
TO = [
    ("host", '"h"'), ("port", "4000"), ("user", '"u"'), ("password", '"p"'),
    ("encrypted_password", f'"{HIDDEN}"'), ("sync-mode", "2"), ("params.lock_wait_timeout", '"5"'),
    ("read-timeout", '"1m"'), ("merge", "false"), ("dir", '"d"'), ("retention-time", "7"),
    ("compression", '"gzip"'), ("zookeeper-addrs", '"z"'), ("kafka-addrs", '"k"'),
    ("kafka-version", '"0.8.2.0"'), ("kafka-max-messages", "1024"),
    ("kafka-max-message-size", "1024"), ("kafka-client-id", '"c"'), ("topic-name", '"t"'),
    ("oracle-service-name", '"o"'), ("oracle-connect-string", '"o"'),
    *((f"security.{key}", value) for key, value in SECURITY),
    ("checkpoint.type", '"oracle"'), ("checkpoint.schema", '"s"'), ("checkpoint.table", '"t"'),
    ("checkpoint.host", '"h"'), ("checkpoint.user", '"u"'), ("checkpoint.password", '"p"'),
    ("checkpoint.encrypted_password", '"p"'), ("checkpoint.port", "1"),
    *((f"checkpoint.security.{key}", value) for key, value in SECURITY),
    ("checkpoint.oracle-service-name", '"o"'), ("checkpoint.oracle-connect-string", '"o"'),
]  # fmt: skip
ALL = [
    *TOP,
    *((f"security.{key}", value) for key, value in SECURITY),
    *((f"syncer.{key}", value) for key, value in SYNCER),
    *((f"syncer.to.{key}", value) for key, value in TO),
]
REFUSED = {
    "syncer.to.sync-mode", "syncer.to.security.cert-allowed-cn",
    *(f"syncer.to.{key}" for key, _ in TO if key.startswith(("zoo", "oracle"))),
    *(f"syncer.to.{key}" for key, _ in TO
      if key.startswith("checkpoint.") and key not in ("checkpoint.schema", "checkpoint.table")),
}  # fmt: skip
FLAG_LIST = {
    "node-id": "n", "addr": "127.0.0.1:1", "advertise-addr": "h:1", "data-dir": "d",
    "detect-interval": "10", "pd-urls": "http://127.0.0.1:2379", "L": "debug", "log-file": "f",
    "initial-commit-ts": "-1", "synced-check-time": "5", "compressor": "", "ignore-schemas": "a",
    "cache-binlog-count": "", "metrics-addr": "", "metrics-interval": "15", "log-rotate": "",
    "txn-batch": "7", "loopback-control": "false", "sync-ddl": "false", "channel-id": "3",
    "c": "3", "worker-count": "3", "dest-db-type": "mysql",
    "relay-log-dir": "r", "relay-max-file-size": "1024",
    "enable-dispatch": "false", "disable-dispatch": "true", "enable-detect": "true",
    "disable-detect": "false", "safe-mode": "true", "load-schema-snapshot": "false",
}  # fmt: skip


def load(
    tmp_path: Path, text: str = "", *flags: str, **env: str
) -> tuple[DrainerConfig, list[str]]:
    (tmp_path / "drainer.toml").write_text(text)
    return load_settings(
        ["--config", str(tmp_path / "drainer.toml"), *flags], prog="drainer", env=env
    )


@pytest.mark.parametrize(
    ("key", "value"), ALL, ids=[f"{number}-{key}" for number, (key, _) in enumerate(ALL)]
)
def test_every_key_has_an_answer(key: str, value: str, tmp_path: Path) -> None:
    is_absent = key == "syncer.db-type" and value.strip('"') in (
        "kafka",
        "oracle",
    )  # No brokers are named.
    if key == "syncer.db-type" and value in ('"file"', '"pb"'):
        value += '\nsyncer.to.dir = "d"'
    if key.startswith(("syncer.to.kafka", "syncer.to.topic")) and key not in KEYS:
        value += '\nsyncer.db-type = "kafka"'
        value += '\nsyncer.to.kafka-addrs = "k"' if key != "syncer.to.kafka-addrs" else ""
    if key in REFUSED or is_absent:
        with pytest.raises(NeedsOperator) as refused:
            load(tmp_path, f"{key} = {value}")
        assert "unknown" not in refused.value.problem
        assert len(refused.value.hint) > 20
        assert "did you mean" not in refused.value.hint
        return
    whole = "".join(f"security.{name} = {text}\n" for name, text in SECURITY)
    config, notes = load(tmp_path, whole if key.startswith("security.") else f"{key} = {value}")
    assert bool(notes) == isinstance(KEYS.get(key), Met)
    assert notes or config != DrainerConfig() or value in ("false", '"mysql"')


@pytest.mark.parametrize("flag", sorted(FLAG_LIST))
def test_every_flag_has_an_answer_and_so_has_its_variable(flag: str, tmp_path: Path) -> None:
    value = FLAG_LIST[flag]
    joined = load(tmp_path, "", f"-{flag}={value}")
    translated = translation().arguments
    written = [[f"--{flag}={value}"]]
    if value == "true":
        written.append([f"-{flag}"])
    elif value != "false":
        written += [[f"-{flag}", value], [f"--{flag}", value]]
    for argv in written:
        assert translated(argv) == translated([f"-{flag}={value}"])
    if len(flag) > 1:
        assert (
            load(tmp_path, "", **{f"BINLOG_SERVER_{flag.upper().replace('-', '_')}": value})
            == joined
        )


def test_the_list_of_flags_is_the_tables_own() -> None:
    assert set(FLAG_LIST) | {"config", "V"} == set(FLAGS)


@pytest.mark.parametrize("key", DrainerConfig.REMOVED)
def test_a_removed_setting_is_answered_with_its_replacement(key: str, tmp_path: Path) -> None:
    with pytest.raises(NeedsOperator, match=f"{key} is no longer a setting") as refused:
        load(tmp_path, f"{key} = 1")
    assert refused.value.hint == DrainerConfig.REMOVED[key]
    flag = key.replace(".", "-")
    variable = f"DRAINER_{flag.replace('-', '_').upper()}"
    for argv, env in (([f"--{flag}=1"], {}), ([], {variable: "1"})):
        with pytest.raises(NeedsOperator, match=f"{key} is no longer a setting"):
            load_settings(argv, prog="drainer", env=env)


SAMPLE = """
detect-interval = 10
data-dir = "data.drainer"
pd-urls = "http://127.0.0.1:2379"
compressor = ""
sql-mode = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION"
[syncer]
ignore-schemas = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql"
txn-batch = 20
worker-count = 16
disable-dispatch = false
safe-mode = false
db-type = "mysql"
[syncer.to]
host = "127.0.0.1"
user = "root"
password = ""
port = 3306
[syncer.to.checkpoint]
"""


def test_the_values_of_the_sample_of_tidb_binlog_load(tmp_path: Path) -> None:
    config, notes = load(tmp_path, SAMPLE)
    mode = "STRICT_TRANS_TABLES%2CNO_ENGINE_SUBSTITUTION"
    assert config.downstream == target_of(f"mysql://root@127.0.0.1:3306/?sql-mode={mode}")
    assert config.etcd_urls == config.pd_address == "http://127.0.0.1:2379"
    assert config.syncer.ignore_schemas == ("INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA", "mysql")
    assert [note.split()[0] for note in notes] == ["detect-interval"]


def test_pd_urls_are_those_of_a_pd_which_also_gives_the_time(tmp_path: Path) -> None:
    both = "http://10.0.0.1:2379,http://10.0.0.2:2379"
    for config, _ in (
        load(tmp_path, f'pd-urls = "{both}"'),
        load(tmp_path, "", "-pd-urls", both),
        load(tmp_path, "", BINLOG_SERVER_PD_URLS=both),
    ):
        assert (config.etcd_urls, config.pd_address) == (both, both)
    for config, _ in (
        load(tmp_path, f'pd-urls = "{both}"\npd-address = "10.0.0.3:1"'),
        load(tmp_path, "", "--pd-address=10.0.0.3:1", "-pd-urls", both),
        load(tmp_path, "", "-pd-urls", both, "--pd-address", "10.0.0.3:1"),
    ):
        assert (config.etcd_urls, config.pd_address) == (both, "10.0.0.3:1")


def test_an_encrypted_password_is_the_one_that_it_hides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in (
        f'syncer.to.encrypted_password = "{HIDDEN}"',
        f'syncer.to.password = "other"\nsyncer.to.encrypted_password = "{HIDDEN}"',
        'syncer.to.password = "s3cret"\nsyncer.to.encrypted_password = ""',
    ):
        config, _ = load(tmp_path, text)
        assert config.syncer.to.password == "s3cret"
    monkeypatch.setenv("BINLOG_SECRET_KEY", "00" * 16)
    # Under another key a password is bytes at random; a few of them may well pass for text.
    for hidden in (encrypted("s3cret" * 20, {}), "x", "eA==", ""):
        refused = bool(hidden)
        text = f'syncer.to.host = "h"\nsyncer.to.encrypted_password = "{hidden}"'
        if not refused:
            load(tmp_path, text)
            continue
        with pytest.raises(NeedsOperator, match="encrypted password is not one") as found:
            load(tmp_path, text)
        assert hidden not in str(found.value)
    with pytest.raises(NeedsOperator, match="BINLOG_SECRET_KEY is no key"):
        encrypted("x", {"BINLOG_SECRET_KEY": "zz"})


def test_what_has_no_effect_is_said_once_and_what_asks_for_nothing_is_not(tmp_path: Path) -> None:
    text = """
    compressor = "gzip"
    [syncer]
    disable-detect = true
    load-schema-snapshot = true
    """
    _, notes = load(tmp_path, text)
    assert [note.split()[0] for note in notes] == [
        "compressor", "syncer.disable-detect", "syncer.load-schema-snapshot",
    ]  # fmt: skip
    quiet = 'compressor = ""\nsyncer.disable-detect = false\nsyncer.load-schema-snapshot = false'
    assert load(tmp_path, quiet)[1] == []


def test_renamed_keys_reach_what_they_name(tmp_path: Path) -> None:
    text = """
    [syncer]
    txn-batch = 7
    worker-count = 3
    safe-mode = true
    enable-dispatch = true
    disable-dispatch = true
    ignore-txn-commit-ts = [5, 414529105591271429]
    [syncer.to]
    merge = false
    [syncer.to.params]
    lock_wait_timeout = 5
    """
    config, _ = load(tmp_path, text, "-txn-batch", "9", "-safe-mode=false")
    apply = config.apply
    assert (apply.txn_batch, apply.worker_count, apply.safe_mode) == (9, 3, False)
    assert (apply.dispatch, apply.strategy) == (False, "statements")
    assert config.ignored_ts == {5, 414529105591271429}
    assert config.syncer.to.params == ("lock_wait_timeout=5",)


def test_two_keys_for_one_thing_and_values_of_the_wrong_kind_are_errors(tmp_path: Path) -> None:
    for text, message in (
        ("apply.txn-batch = 3\nsyncer.txn-batch = 4", "set twice"),
        ('syncer.disable-dispatch = "x"', "neither true nor false"),
        ("syncer.txn-batches = 4", "unknown key"),
    ):
        with pytest.raises(NeedsOperator, match=message):
            load(tmp_path, text)
    with pytest.raises(NeedsOperator, match="has no value"):
        load(tmp_path, "", "-txn-batch")


def test_the_log_says_what_is_set_and_no_secret(tmp_path: Path) -> None:
    text = """
    [spark]
    conf = ["spark.hadoop.fs.password=hush", "spark.a=b"]
    [syncer.to]
    password = "hush"
    host = "h"
    params = ["secret=hush", "x=y"]
    """
    config, _ = load(tmp_path, text)
    logged = list(differing(config, DrainerConfig()))
    assert "hush" not in str(logged)
    assert "syncer.to.host = 'h'" in logged
    assert "syncer.to.password = ***" in logged
    config, _ = load(tmp_path, 'sink = "mysql://u:hu:sh@h:1/?ssl-ca=/p"')
    assert list(differing(config, DrainerConfig())) == ["sink = 'mysql://u:***@h:1/?ssl-ca=/p'"]
    assert without_password("mysql://u@h/") == "mysql://u@h/"
    assert without_password("mysql://u:p@[x/") == "***"

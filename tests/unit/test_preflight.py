"""What `penstock run` finds missing on both sides, and the statements that it prints."""

import getpass
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from drainer.settings.targets import KafkaTarget, MysqlTarget, target_of
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.local.run import preflight
from penstock.local.run.preflight import (
    acls,
    check_apart,
    downstream_checks,
    judge_server,
    report,
    sides_of,
)
from penstock.node.checks import Check, account_text, lacking, privileges
from pumpclient.mysql.protocol.server import address_in
from pumpclient.mysql.source.checks import LOADING, LOCKING, engine_checks, judge

GOOD = {
    "log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "server_id": "1",
}  # fmt: skip
NOTHING = ["GRANT USAGE ON *.* TO `me`@`%`"]
ALL = ["GRANT ALL PRIVILEGES ON *.* TO `me`@`%`"]
ME = "'me'@'%'"
ALL_OF_A_DRAINER = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES"


def fixes(checks: list[Check]) -> list[str]:
    return [fix for check in checks if not check.passed for fix in check.fixes]


def downstream(grants: list[str], version: str = "10.11.6-MariaDB", **more: bool) -> list[Check]:
    more = {"is_read_only": False, **more}
    return judge_server(version, "MariaDB" in version, grants, ME, "tidb_binlog", **more)


def test_an_account_without_rights_upstream_gets_one_grant_of_all_that_a_load_needs() -> None:
    found = judge(GOOD, NOTHING, ME, {**LOADING, **LOCKING})
    assert fixes(found) == [
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT, RELOAD, LOCK TABLES, SELECT ON *.* TO"
        " 'me'@'%';"
    ]
    assert fixes(judge(GOOD, ALL, ME, LOADING)) == []


@pytest.mark.parametrize(
    "granted",
    [
        "SELECT, RELOAD, REPLICATION SLAVE, REPLICATION CLIENT",
        "SELECT, RELOAD, REPLICATION REPLICA, BINLOG MONITOR",
        "SELECT, RELOAD, SUPER, REPLICATION SLAVE",
    ],
)
def test_each_server_s_own_names_of_privileges_count(granted: str) -> None:
    assert fixes(judge(GOOD, [f"GRANT {granted} ON *.* TO `me`@`%`"], ME, LOADING)) == []


def test_every_setting_that_is_wrong_is_named_in_one_run_with_the_line_that_corrects_it() -> None:
    wrong = {
        "log_bin": "OFF", "binlog_format": "MIXED", "binlog_row_image": "MINIMAL",
        "server_id": "0", "binlog_checksum": "MD5", "expire_logs_days": "0.01",
    }  # fmt: skip
    assert fixes(judge(wrong, ALL, ME)) == [
        "log-bin = mysql-bin",
        "SET GLOBAL binlog_format = 'ROW';",
        "SET GLOBAL binlog_row_image = 'FULL';",
        "SET GLOBAL server_id = 1;",
        "SET GLOBAL binlog_checksum = 'CRC32';",
        "SET GLOBAL binlog_expire_logs_seconds = 86400;",
    ]


def test_an_account_without_rights_downstream_gets_one_grant_which_is_then_enough() -> None:
    (fix,) = fixes(downstream(NOTHING))
    assert fix == f"GRANT {ALL_OF_A_DRAINER} ON *.* TO 'me'@'%';"
    assert fixes(downstream([fix.replace("'", "`").rstrip(";")])) == []
    assert fixes(downstream(ALL)) == []


def test_the_schema_of_the_checkpoint_may_be_granted_alone() -> None:
    of_shop = f"GRANT {ALL_OF_A_DRAINER} ON `shop`.* TO `me`@`%`"
    assert fixes(downstream([of_shop])) == [
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON `tidb_binlog`.* TO 'me'@'%';"
    ]
    own = r"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON `tidb\_binlog`.* TO `me`@`%`"
    assert fixes(downstream([of_shop, own])) == []
    assert fixes(downstream([own])) == [f"GRANT {ALL_OF_A_DRAINER} ON *.* TO 'me'@'%';"]


def test_an_account_with_roles_is_assumed_to_have_what_they_give() -> None:
    assert fixes(downstream(["GRANT `r`@`%` TO `me`@`%`", *NOTHING])) == []


def test_an_old_and_a_read_only_downstream_are_refused() -> None:
    old, *_ = downstream(ALL, "5.6.51")
    assert (old.passed, old.hint) == (False, "use 5.7 or later")
    assert downstream(ALL, "8.0.11-TiDB-v7.5.0")[0].passed
    minimal = [f"GRANT {ALL_OF_A_DRAINER} ON *.* TO `me`@`%`"]
    assert fixes(downstream(minimal, is_read_only=True)) == ["SET GLOBAL read_only = OFF;"]
    assert fixes(downstream(ALL, is_read_only=True)) == []


def test_engines_are_locked_or_named_with_the_flag_that_leaves_a_table_out() -> None:
    lost, locked = engine_checks(
        [("shop.a", "myisam"), ("shop.b", "blackhole"), ("shop.c", "csv")], loads=True
    )
    assert (lost.required, lost.fixes) == (True, ("--ignore-table shop.b",))
    assert (locked.required, locked.names) == (False, ("shop.a (myisam)", "shop.c (csv)"))
    assert [each.passed for each in engine_checks([], loads=True)] == [True]


def test_names_of_accounts_and_scopes_are_read_as_servers_write_them() -> None:
    assert account_text("o'neil@ex@10.%") == "'o''neil@ex'@'10.%'"
    found = privileges([
        "GRANT SELECT (`a`, `b`), INSERT ON TABLE `my shop`.`t` TO `me`@`%` WITH GRANT OPTION",
        "GRANT ROLE TO `me`@`%`",
    ])  # fmt: skip
    assert found == {"my shop.t": {"SELECT", "INSERT"}}
    assert lacking({"SELECT": (), "RELOAD": ("FLUSH_TABLES",)}, {"FLUSH_TABLES"}) == ["SELECT"]


def test_all_problems_of_both_sides_are_in_one_list_each_kind_once() -> None:
    names = ("shop.a (x)", "shop.b (y)")
    sides = sides_of({
        "upstream": lambda: [Check("engines", False, "2 tables", "leave them out", names=names)],
        "downstream": lambda: [Check("version", True, "1"), Check("note", False, "n", "", False)],
    })  # fmt: skip
    text, error = report(sides)
    assert text.splitlines() == [
        "upstream:",
        "  FAILED   engines: 2 tables",
        "           shop.a (x)",
        "           shop.b (y)",
        "           leave them out",
        "downstream:",
        "  notice   note: n",
    ]
    assert isinstance(error, NeedsOperator)


def test_a_side_that_is_away_hides_no_problem_of_the_other_and_may_be_back_later() -> None:

    def away() -> list[Check]:
        raise Retryable("no answer", Code.SERVER_AWAY)

    text, error = report(sides_of({"up": away, "down": lambda: []}))
    assert "no answer" in text
    assert isinstance(error, Retryable)
    failed = [Check("privileges", False, "none")]
    text, error = report(sides_of({"up": away, "down": lambda: failed}))
    assert "privileges" in text
    assert isinstance(error, NeedsOperator)
    assert report({"up": [Check("a", True, "")]}) == ("", None)


def test_a_side_that_takes_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_ANSWER_S", 0.01)
    said: list[str] = []
    waited = threading.Event()

    def slow() -> list[Check]:
        assert waited.wait(60)
        return []

    def say(line: str) -> None:
        said.append(line)
        waited.set()

    assert sides_of({"fast": lambda: [], "slow": slow}, say) == {"fast": [], "slow": []}
    assert said[0] == "waits for slow"


class Brokers:
    """An admin client that may not create topics."""

    def __init__(self, options: dict[str, Any]) -> None:
        assert options["bootstrap.servers"] == "b:9092"

    def list_topics(self, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics={"_penstock_checkpoint": None})

    def create_topics(self, asked: list[Any], **more: Any) -> dict[str, Future[None]]:
        assert more["validate_only"]
        refused: Future[None] = Future()
        refused.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
        return {each.topic: refused for each in asked}


def test_brokers_that_refuse_to_create_topics_are_reported_with_the_commands_that_permit_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", Brokers)
    target = target_of("kafka://b:9092/?prefix=shop")
    assert isinstance(target, KafkaTarget)
    (refused,) = [each for each in downstream_checks(target) if not each.passed]
    assert (refused.name, refused.fixes) == ("topics", acls(target))
    assert "shop.ddl" in refused.found
    made = target_of("kafka://b:9092/?prefix=shop&create-topics=false&checkpoint-topic=own")
    (refused,) = [each for each in downstream_checks(made) if not each.passed]
    assert refused.found == "own does not exist, and create-topics is false"


def test_a_folder_is_tried_before_anything_starts(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}/new/er", f"delta://{tmp_path}/lake", f"sqlite:///{tmp_path}/d"):
        assert [each.passed for each in downstream_checks(target_of(url))] == [True]
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "file"
    file.write_text("")
    (found,) = downstream_checks(target_of(f"file://{file}/in"))
    assert (found.passed, f"{file} cannot be written" in found.found) == (False, True)
    assert found.fixes == (f"sudo chown -R {getpass.getuser()} {file}",)


def test_brokers_that_do_not_answer_are_named_within_seconds() -> None:
    target = target_of("kafka://127.0.0.1:1/")
    assert isinstance(target, KafkaTarget)
    with pytest.raises(Retryable, match=r"no broker answers at 127\.0\.0\.1:1"):
        downstream_checks(target)
    assert acls(target)[1].endswith("--topic _penstock_checkpoint")


def test_one_server_is_not_both_sides_by_any_name_of_its_host() -> None:
    upstream = address_in("mysql://u@localhost:3306/", "upstream")
    for url in ("mysql://u@127.0.0.1:3306/", "mysql://u@localhost:3306/"):
        with pytest.raises(NeedsOperator, match="both the upstream and the downstream"):
            check_apart(upstream, sql(url))
    for url in ("mysql://u@127.0.0.1:3307/", "mysql://u@no.such.host.invalid:3306/"):
        check_apart(upstream, sql(url))


def sql(url: str) -> MysqlTarget:
    target = target_of(url)
    assert isinstance(target, MysqlTarget)
    return target

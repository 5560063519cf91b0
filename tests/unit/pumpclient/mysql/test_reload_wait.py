"""`reload --wait` follows a source's status to the end of a reload, and fails where it failed."""

from collections.abc import Iterable
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.errors import NeedsOperator
from pumpclient.mysql.source.command import waited_for
from pumpclient.mysql.source.config import SourceConfig
from pumpclient.mysql.source.pages import described
from pumpclient.mysql.source.service import SourceService
from pumpclient.mysql.source.state.checkpoint import Checkpoint
from pumpclient.mysql.source.state.overrides import tables_reloaded
from pumpclient.mysql.source.state.skipped import SkippedTable
from pumpclient.mysql.source.sync.reload import ReloadStatus

DONE = {"reload": 1, "rows": 0, "started": "10:00", "ended": "10:01", "dropped": ""}


def left_out(number: int = 1, **reload: str) -> dict[str, Any]:
    entry = {"is_whole": True, "reload_number": number, "reload": reload or None}
    return {"left_out": {"shop.t": entry}}


def done(**report: Any) -> dict[str, Any]:
    return {"left_out": {}, "reloaded": {"shop.t": {**DONE, **report}}}


def waited(*statuses: dict[str, Any]) -> str:
    answers: Iterable[dict[str, Any]] = iter(statuses)
    return waited_for(["`shop`.t"], lambda: next(iter(answers)), lambda seconds: None)


def test_it_waits_through_the_states_of_a_reload_and_says_what_was_loaded() -> None:
    text = waited(left_out(), left_out(state="loads"), left_out(state="follows"), done())
    assert text == "shop.t: 0 rows loaded, 10:00 to 10:01\n"


def test_a_table_that_the_server_dropped_meanwhile_is_no_failure_and_is_named() -> None:
    text = waited(left_out(), done(dropped="mysql-bin|000001.000001:99"))
    assert text.startswith("shop.t: the server dropped it at mysql-bin|000001.000001:99")


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (left_out(state="failed", problem="no such table", hint="create it"), "no such table"),
        (left_out(0), "was ended before it was done"),
        ({"left_out": {}, "reloaded": {}}, "renamed it"),
    ],
)
def test_it_fails_where_the_table_is_not_followed_afterwards(
    status: dict[str, Any], problem: str
) -> None:
    with pytest.raises(NeedsOperator, match=problem):
        waited(left_out(state="loads"), status)


def test_a_table_that_the_server_does_not_have_is_not_reloaded_unless_it_is_left_out() -> None:
    checkpoint = Checkpoint(epoch=1, server="s", done="a|000001.mysql-bin.000001:4")
    gone = tables_reloaded([("shop", "t")], gone=[("shop", "t")])
    with pytest.raises(NeedsOperator, match=r"does not have shop\.t"):
        gone(checkpoint)
    noted, _ = tables_reloaded([("shop", "t")])(checkpoint)
    assert gone(noted)[0].reloads == 2


def test_a_reload_that_failed_does_not_answer_for_the_one_that_was_asked_for_since() -> None:
    service = SourceService(SourceConfig(source_id="mysql-1"))
    table = SkippedTable(schema="shop", table="t", since="", is_whole=True, reload=2)
    service.counters.left_out = (table,)
    failed = ReloadStatus("failed", "no such table", "create it")
    for number, shown in ((1, None), (2, asdict(failed))):
        service.reloads = cast(Any, SimpleNamespace(statuses={number: failed}))
        assert described(service)["left_out"]["shop.t"]["reload"] == shown

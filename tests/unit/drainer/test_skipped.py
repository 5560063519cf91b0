"""What does not go downstream is counted exactly, said once, and is in the checkpoint."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.differences import (
    DDLS,
    KINDS,
    LOOP_BACK,
    NAMED_MAX,
    OTHERS,
    OVERRIDE,
    REPLACE,
    ROWS,
    SKIP,
    TRANSACTIONS,
    VALUES,
    Counts,
    Override,
    Skipped,
    SkippedTotals,
    from_lists,
    to_lists,
)
from drainer.pages import skipped_metrics
from drainer.sinks.checkpoint import Checkpoint
from penstock.errors import Malformed

ITEM = Skipped(ROWS, OVERRIDE, "shop.item")
NAMES = st.text(max_size=5)
TOTALS = st.dictionaries(
    st.builds(Skipped, st.sampled_from(KINDS), NAMES, NAMES, NAMES), st.integers(0, 2**60)
)


@given(TOTALS)
def test_totals_come_back_from_a_checkpoint(totals: dict[Skipped, int]) -> None:
    assert from_lists(to_lists(totals)) == totals
    made = {7: Override(commit_ts=7, verb=SKIP, made="then", ended_ts=9),
            8: Override(commit_ts=8, verb=REPLACE, sql="DROP TABLE t")}  # fmt: skip
    held = Checkpoint(20, 3, skipped=totals, overrides=made)
    assert Checkpoint.from_json(held.to_json("me")) == held


def test_a_checkpoint_without_overrides_says_whether_it_could_have_some() -> None:
    for held in (Checkpoint(20, 3), Checkpoint(20, 3, overrides={})):
        assert Checkpoint.from_json(held.to_json("me")) == held


@pytest.mark.parametrize(
    "damage",
    [
        '"left-out": [["rows", "override", "t", ""]]',
        '"left-out": [["rows", "override", "t", "", -1]]',
        '"left-out": [["what", "override", "t", "", 1]]',
        '"left-out": 7',
        '"overrides": {"x": {"replace": null, "made": ""}}',
        '"overrides": {"8": {"verb": "forget", "replace": null, "made": ""}}',
        '"overrides": [8]',
    ],
)
def test_damaged_counts_and_overrides_are_refused(damage: str) -> None:
    with pytest.raises(Malformed, match=r"left-out|overrides"):
        Checkpoint.from_json('{"commitTS": 5, ' + damage + "}")


def test_counts_become_totals_once_their_step_is_downstream_and_are_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    skipped = SkippedTotals({ITEM: 5})
    with caplog.at_level(logging.WARNING):
        after = skipped.after(Counts({ITEM: 2}))
        assert skipped.after(Counts({ITEM: 2})) == after == {ITEM: 7}
    assert skipped.totals == {ITEM: 5}
    skipped.reached(after)
    assert skipped.facts().rows_left_out == 7
    assert skipped.facts().left_out == "override: 7 rows of shop.item"
    assert caplog.text.count("rows of shop.item do not go downstream (override)") == 1


def test_many_tables_are_counted_together_and_none_is_lost() -> None:
    skipped = SkippedTotals({})
    for number in range(NAMED_MAX + 50):
        skipped.reached(skipped.after(Counts({replace_table(number): 1, ITEM: 1})))
    assert skipped.total(ROWS) == 2 * (NAMED_MAX + 50)
    assert len(skipped.totals) == NAMED_MAX + 1
    assert skipped.totals[ITEM] == NAMED_MAX + 50
    assert skipped.totals[Skipped(ROWS, OVERRIDE, OTHERS)] == 51


def replace_table(number: int) -> Skipped:
    return ITEM._replace(table=f"shop.t{number}")


def test_every_count_is_a_metric_with_its_cause_and_table() -> None:
    totals = {
        ITEM: 3,
        Skipped(VALUES, OVERRIDE, "shop.item", "extra"): 4,
        Skipped(DDLS, OVERRIDE, "shop.item"): 1,
        Skipped(TRANSACTIONS, LOOP_BACK): 2,
    }
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in skipped_metrics(totals)
        for sample in family.samples
    }
    assert found == {
        ("penstock_drainer_rows_left_out_total", "override", "shop.item"): 3,
        ("penstock_drainer_values_left_out_total", "override", "shop.item", "extra"): 4,
        ("penstock_drainer_ddls_left_out_total", "override", "shop.item"): 1,
        ("penstock_drainer_transactions_left_out_total", "loop-back"): 2,
    }

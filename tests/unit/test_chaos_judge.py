"""The judge of a chaos: silent about what is right, and never about what is wrong."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos import history as names
from tests.chaos.history import (
    ACCOUNTS,
    CAPITAL,
    COLUMNS,
    ENTRIES,
    PAGES,
    Change,
    History,
    Outcome,
    Row,
    Tables,
    changes_json,
    checksum_of,
    history_of,
    page,
)
from tests.chaos.judge import Final, Snapshot, judge, unsettled, until

CHECKING, SAVINGS, _ = ACCOUNTS
ADD = names.ADD.format(table=CHECKING, column="c_1", value=7)
CREATE = names.CREATE.format(table="shop.extra_1")


def account(number: int, balance: int) -> Row:
    return {"id": number, "owner": "w", "balance": balance}


class Story:
    """A bank, three transfers, an item, DDL, and the downstream as it should be."""

    def __init__(self) -> None:
        self.history = History()
        self.snapshots: list[Snapshot] = []
        self._lines: list[dict[str, Any]] = []
        self.transact(10, Change(CHECKING, None, account(1, CAPITAL)))
        opened = Change(SAVINGS, None, account(2, 0))
        self.transact(20, opened)
        self.transfer(30, 0, 5)
        self.ddl(35, ADD)
        self.transfer(40, 5, 9)
        self.ddl(45, CREATE)
        self.transact(50, Change("shop.extra_1", None, {"id": 1, "note": "n"}))
        item = {"id": 4, "code": None, "note": "zwölf"}
        self.transact(55, Change("shop.item", None, item))
        self.transfer(60, 9, 20)
        self.final = self.replayed_up_to(60)

    def transact(
        self, commit_ts: int, *changes: Change, outcome: Outcome = Outcome.ACKNOWLEDGED
    ) -> None:
        place = ["w", len(self.history.transactions) + 1]
        entry = Change(ENTRIES, None, {"owner": "w", "number": place[1]})
        self.note(begin=place, changes=changes_json([*changes, entry]))
        if commit_ts:
            self.note(decided=place, commit_ts=commit_ts)
        if outcome is not Outcome.UNKNOWN:
            self.note(end=place, outcome=outcome)

    def transfer(self, commit_ts: int, before: int, after: int, **how: Any) -> None:
        rows = (account(1, CAPITAL - before), account(1, CAPITAL - after))
        others = (account(2, before), account(2, after))
        self.transact(commit_ts, Change(CHECKING, *rows), Change(SAVINGS, *others), **how)

    def ddl(self, commit_ts: int, query: str) -> None:
        self.note(begin=query)
        self.note(end=query, outcome=Outcome.ACKNOWLEDGED)
        self.history.ddl[query].commit_ts = commit_ts

    def note(self, **said: Any) -> None:
        self.history.note(json.dumps(said))

    def tables(self, commit_ts: int) -> Tables:
        tables = Tables()
        steps = [(t.commit_ts, t) for t in self.history.transactions.values()]
        for query, ddl in self.history.ddl.items():
            if ddl.commit_ts <= commit_ts:
                tables.alter(query)
        for at, transaction in steps:
            if at <= commit_ts:
                tables.apply(transaction)
        return tables

    def snapshot(self, commit_ts: int) -> Snapshot:
        tables = self.tables(commit_ts)
        return Snapshot(commit_ts, tables.total, dict(tables.sums))

    def replayed_up_to(self, commit_ts: int) -> Final:
        tables = self.tables(commit_ts)
        found = Final()
        for table, rows in tables.rows.items():
            columns = COLUMNS.get(table, names.EXTRA)
            added = tables.added.get(table, {})
            found.rows[table] = [
                {**dict(zip(columns, row, strict=True)), **added} for row in rows.elements()
            ]
        return found

    def verdict(self) -> str:
        return "\n".join(judge(self.history, self.snapshots, self.final))


@pytest.fixture
def story() -> Story:
    return Story()


def test_what_is_right_is_right_at_every_moment(story: Story) -> None:
    story.snapshots = [story.snapshot(ts) for ts in (0, 10, 20, 25, 30, 40, 60, 60)]
    assert story.verdict() == ""


def lose_a_transaction(story: Story) -> None:
    story.final.rows[ENTRIES].pop()


def double_a_transaction(story: Story) -> None:
    story.final.rows[ENTRIES].append({"owner": "w", "number": 3})


def invent_a_transaction(story: Story) -> None:
    story.final.rows[ENTRIES].append({"owner": "w", "number": 99})


def lose_a_row(story: Story) -> None:
    story.final.rows["shop.item"].clear()


def double_a_row(story: Story) -> None:
    story.final.rows["shop.item"] *= 2


def change_a_row(story: Story) -> None:
    story.final.rows["shop.item"][0]["note"] = "zwolf"


def lose_half_of_a_transfer(story: Story) -> None:
    story.final.rows[SAVINGS][0]["balance"] = 9


def lose_a_table(story: Story) -> None:
    del story.final.rows["shop.extra_1"]


def lose_a_default(story: Story) -> None:
    story.final.rows[CHECKING][0]["c_1"] = None


def lose_a_column(story: Story) -> None:
    del story.final.rows[CHECKING][0]["c_1"]


def have_a_column_too_many(story: Story) -> None:
    story.final.rows[CHECKING][0]["c_2"] = 8


def see_a_wrong_total(story: Story) -> None:
    right = story.snapshot(30)
    story.snapshots = [Snapshot(30, CAPITAL - 5, right.sums)]


def see_half_of_a_transaction(story: Story) -> None:
    sums = {**story.snapshot(30).sums, SAVINGS: story.snapshot(20).sums[SAVINGS]}
    story.snapshots = [Snapshot(30, CAPITAL, sums)]


def see_a_state_of_another_moment(story: Story) -> None:
    earlier = story.snapshot(20)
    story.snapshots = [Snapshot(30, CAPITAL, earlier.sums)]


def see_a_transaction_twice_for_a_moment(story: Story) -> None:
    count, checksum = story.snapshot(30).sums[ENTRIES]
    again = count + 1, checksum + checksum_of(("w", 3))
    story.snapshots = [Snapshot(30, CAPITAL, {**story.snapshot(30).sums, ENTRIES: again})]


def go_back(story: Story) -> None:
    story.snapshots = [story.snapshot(40), story.snapshot(30)]


def apply_what_was_refused(story: Story) -> None:
    story.history.transactions["w", 6].outcome = Outcome.REFUSED


def apply_what_was_never_committed(story: Story) -> None:
    transaction = story.history.transactions["w", 7]
    transaction.commit_ts, transaction.outcome = 0, Outcome.UNKNOWN


def give_a_commit_ts_twice(story: Story) -> None:
    story.history.transactions["w", 6].commit_ts = 60


def lose_a_ddl(story: Story) -> None:
    story.history.ddl[CREATE].commit_ts = 0


def run_a_refused_ddl(story: Story) -> None:
    story.history.ddl[ADD].outcome = Outcome.REFUSED


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lose_a_transaction, "1 × acknowledged and not downstream"),
        (double_a_transaction, "1 × downstream more than once: ('w', 3)"),
        (invent_a_transaction, "1 × downstream and never written: ('w', 99)"),
        (lose_a_row, "1 × row missing in shop.item"),
        (double_a_row, "1 × row too many in shop.item"),
        (change_a_row, "1 × row too many in shop.item"),
        (lose_half_of_a_transfer, f"the bank has {CAPITAL - 11} at the end"),
        (lose_a_table, "tables ['shop.extra_1'] are on one side only"),
        (lose_a_default, "lacks the defaults"),
        (lose_a_column, "lacks the defaults"),
        (have_a_column_too_many, "1 × row too many in bank.checking"),
        (see_a_wrong_total, f"a total of {CAPITAL - 5}"),
        (see_half_of_a_transaction, "snapshot that never was: at 30 bank.savings"),
        (see_a_state_of_another_moment, "snapshot that never was: at 30"),
        (see_a_transaction_twice_for_a_moment, "snapshot that never was: at 30 bank.entry"),
        (go_back, "checkpoint went back: 40 to 30"),
        (apply_what_was_refused, "refused and yet downstream: ('w', 6)"),
        (apply_what_was_never_committed, "was never given a commit_ts: ('w', 7)"),
        (give_a_commit_ts_twice, "commit_ts given twice: 60"),
        (lose_a_ddl, "DDL acknowledged and not in the cluster's history"),
        (run_a_refused_ddl, "DDL refused and yet in the cluster's history"),
    ],
)
def test_each_wrong_is_found(story: Story, wrong: Callable[[Story], None], said: str) -> None:
    wrong(story)
    assert said in story.verdict()


@pytest.mark.parametrize("is_there", [True, False])
def test_what_no_one_was_answered_may_be_there_or_not_but_never_in_part(is_there: bool) -> None:
    story = Story()
    story.transfer(70, 20, 21, outcome=Outcome.UNKNOWN)
    story.final = story.replayed_up_to(70 if is_there else 60)
    assert story.verdict() == ""
    story.final.rows[SAVINGS][0]["balance"] = 20 if is_there else 21
    assert "row missing in bank.savings" in story.verdict()


def test_a_ddl_is_known_again_in_the_text_that_the_cluster_keeps_of_it() -> None:
    assert names.ddl_key(CREATE) == names.ddl_key(
        "CREATE TABLE `extra_1` (id BIGINT PRIMARY KEY, note VARCHAR(100)) DEFAULT CHARSET=utf8mb4"
    )
    assert names.ddl_key(ADD) == names.ddl_key(
        "ALTER TABLE `checking` ADD COLUMN c_1 INT DEFAULT 7"
    )
    assert len({names.ddl_key(query) for query in (ADD, CREATE, ADD.replace("c_1", "c_2"))}) == 3


def test_a_line_that_a_kill_has_cut_off_is_left_out() -> None:
    begin = json.dumps({"begin": ["w", 1], "changes": []}) + "\n"
    assert history_of([begin, begin[:-5]]).count(Outcome.UNKNOWN) == 1


def test_pages_are_noted_by_their_range_and_come_back_whole() -> None:
    rows = [page(number) for number in range(5, 25)]
    for changes in ([Change(PAGES, None, r) for r in rows], [Change(PAGES, r, None) for r in rows]):
        short = changes_json(changes)
        assert len(json.dumps(short)) < 100
        history = history_of([json.dumps({"begin": ["w", 1], "changes": short}) + "\n"])
        assert history.transactions["w", 1].changes == changes


def test_rows_that_do_not_fit_each_other_are_said_to_be_the_history_s_own_mistake() -> None:
    story = Story()
    story.transact(80, Change("shop.item", None, {"id": 4, "code": None, "note": "zwölf"}))
    story.final = story.replayed_up_to(80)
    assert "the history itself has 2" in story.verdict()


def broken_off_at(story: Story, commit_ts: int) -> list[str]:
    """Judge a run of which the downstream has what came up to a moment."""
    story.snapshots = [story.snapshot(ts) for ts in (10, 20, commit_ts)]
    story.final = story.replayed_up_to(commit_ts)
    return until(story.history, story.snapshots, story.final)


@pytest.mark.parametrize("commit_ts", [20, 35, 47, 60])
def test_in_a_run_that_broke_off_what_is_late_is_not_called_lost(
    story: Story, commit_ts: int
) -> None:
    assert broken_off_at(story, commit_ts) == []


@pytest.mark.parametrize(
    "spoil",
    [
        *(lose_a_transaction, double_a_transaction, invent_a_transaction),
        *(lose_a_default, lose_a_column, have_a_column_too_many, lose_a_table),
    ],
)
def test_in_a_run_that_broke_off_what_is_wrong_before_its_checkpoint_is_found(
    story: Story, spoil: Callable[[Story], None]
) -> None:
    assert broken_off_at(story, 47) == []
    spoil(story)
    assert until(story.history, story.snapshots, story.final) != []


def test_in_a_run_that_broke_off_rows_of_tables_with_later_ddl_are_compared() -> None:
    story = Story()
    assert broken_off_at(story, 30) == []
    assert unsettled(story.history, 30) == {CHECKING, "shop.extra_1"}
    for row in story.final.rows[CHECKING]:
        row["c_1"] = 7  # The Drainer has come to the DDL, but not to a checkpoint behind it.
    story.final.rows["shop.extra_1"] = []
    assert until(story.history, story.snapshots, story.final) == []
    story.final.rows[CHECKING][0]["balance"] -= 1
    said = "\n".join(until(story.history, story.snapshots, story.final))
    assert f"row missing in {CHECKING}" in said
    assert f"row too many in {CHECKING}" in said
    del story.final.rows[SAVINGS]
    assert f"['{SAVINGS}'] are on one side" in "\n".join(
        until(story.history, story.snapshots, story.final)
    )


def test_in_a_run_that_broke_off_a_snapshot_that_never_was_is_found(story: Story) -> None:
    assert broken_off_at(story, 47) == []
    story.snapshots[1] = Snapshot(20, CAPITAL - 1, story.snapshots[1].sums)
    assert "never was" in "\n".join(until(story.history, story.snapshots, story.final))

"""Row changes by table: exact for the tables that changed last, in a bounded number."""

from drainer.facts import TABLES_MAX, TableCounts


def counted(counts: TableCounts) -> list[tuple[str, int]]:
    return [(each.name, each.rows) for each in counts.facts()]


def test_the_table_that_changed_last_is_first_and_counts_add_up() -> None:
    counts = TableCounts()
    for name, rows in (("shop.a", 2), ("shop.b", 1), ("shop.a", 3)):
        counts.note(name, rows)
    assert counted(counts) == [("shop.a", 5), ("shop.b", 1)]


def test_beyond_the_bound_the_table_that_is_unchanged_for_longest_is_forgotten() -> None:
    counts = TableCounts()
    counts.note("first", 1)
    for number in range(TABLES_MAX - 1):
        counts.note(f"t{number}", 1)
    counts.note("first", 1)
    counts.note("one too many", 1)
    assert counted(counts)[:2] == [("one too many", 1), ("first", 2)]
    counts.note("t0", 1)
    assert counted(counts)[0] == ("t0", 1)
    assert len(counted(counts)) < TABLES_MAX

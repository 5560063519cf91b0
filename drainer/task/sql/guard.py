"""What keeps an upsert on MySQL from changing another row than the one that was meant.

    .. KEY UPDATE c=IF(k=VALUES(k) OR 1+LENGTH(k)+18446744073709551615,VALUES(c),VALUES(c))

MySQL knows no conflict target: in a table with a further unique index the row that is found may be
one that somebody put there by hand, with another key. For that row only, the sum is computed, which
no 64 bits hold: error 1690 in any sql_mode, and the statement changes nothing. It depends on the
row, since a server may compute constants beforehand, as TiDB does subqueries.

Keys of texts are compared byte for byte. Where the downstream's collation takes two keys for one
that upstream tells apart (it pads, or ignores case or accents), the second would change the row of
the first. Upstream itself never has two such rows at once, and compaction deletes the one before it
writes the other: so what is found has the very same bytes, or is another row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drainer.task.sql.keys import EXACT, is_written
from drainer.task.sql.literals import Family, family
from penstock.schema.model import IndexInfo, MysqlType, TableInfo

_CARRIERS = (EXACT, {MysqlType.VARCHAR, MysqlType.STRING})
"""Through IF, numbers and plain texts come as they were; an ENUM, say, would come as a text."""


def carrier(table: TableInfo, key: IndexInfo) -> int | None:
    """Return the column whose new value the guard is to stand in; None where there is no need.

    That is in a table without texts in its key and without further unique indexes. Nor is there
    one for a key of prefixes: its rows are the same with another text behind them.
    """
    offsets = [part.offset for part in key.columns]
    others = [i for i in table.indexes if i.unique and [p.offset for p in i.columns] != offsets]
    if not (others or texts_of(table, key)) or any(part.length != -1 for part in key.columns):
        return None
    free = [i for i, c in enumerate(table.columns) if is_written(c) and i not in offsets]
    for types in _CARRIERS:
        for position in (*free, *offsets):
            if table.columns[position].tp in types:
                return position
    return None


def texts_of(table: TableInfo, key: IndexInfo) -> list[int]:
    """Return the columns of a key that a collation compares."""
    offsets = [part.offset for part in key.columns]
    return [offset for offset in offsets if family(table.columns[offset]) is Family.TEXT]


def guarded(
    new: Mapping[str, str], name: str, key: Sequence[str], texts: Sequence[str]
) -> dict[str, str]:
    """Return the new values by quoted name, with the guard in that of `name`.

    It comes first of all: what came before it could make the keys equal. `texts` are of the key.
    """
    same = " AND ".join(
        f"CAST({each} AS BINARY)=CAST(VALUES({each}) AS BINARY)"
        if each in texts
        else f"{each}=VALUES({each})"
        for each in key
    )
    value = new.get(name, name)
    first = f"IF({same} OR 1+LENGTH({key[0]})+18446744073709551615,{value},{value})"
    return {name: first} | {n: v for n, v in new.items() if n != name}

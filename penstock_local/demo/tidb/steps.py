"""The steps in the middle of the TiDB demo, and their times.

sysbench names tables and columns in its statements. It survives all steps, because none of them
renames or drops one of its tables, or drops one of its columns.
"""

from __future__ import annotations

from dataclasses import dataclass

TABLES = 4
"""The number of sysbench's tables; the plan below leaves one of them unchanged."""


@dataclass(frozen=True, slots=True)
class Step:
    """Statements, or a kill and restart of the TiDB.

    `share` is the time of the step: the elapsed share of sysbench's duration.
    """

    share: float
    sql: tuple[str, ...] = ()
    kills: bool = False


PLAN = (
    Step(0.15, ("ALTER TABLE sbtest1 ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'as loaded'",)),
    Step(0.20, ("UPDATE sbtest1 SET note = CONCAT('row ', id) WHERE id % 10 = 0",)),
    # Rows change in between the four states of an index that is being filled.
    Step(0.30, ("ALTER TABLE sbtest2 ADD INDEX pad_1 (pad)",)),
    # Every row is written again, into a column of another id.
    Step(0.45, ("ALTER TABLE sbtest3 MODIFY COLUMN k DECIMAL(14,2) NOT NULL DEFAULT 0",)),
    Step(0.60, kills=True),
    Step(
        0.85,
        (
            "CREATE TABLE picked (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, k INT,"
            " price DECIMAL(8,2))",
            "INSERT INTO picked (k, price) SELECT k, k / 7 FROM sbtest1 WHERE id % 20 = 0",
            "ALTER TABLE picked DROP COLUMN price",
        ),
    ),
)

"""The steps in the middle of the MySQL demo, and their times.

sysbench names tables and columns in its statements. It survives all steps, because none of them
renames or drops one of its tables, or drops one of its columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

TABLES = 4
"""The number of sysbench's tables; the plan below leaves one of them unchanged."""


class SourceIs(StrEnum):
    """The effect of a step on the source."""

    LEFT = "left alone"
    KILLED = "killed"
    STARTED = "started"


@dataclass(frozen=True, slots=True)
class Step:
    """Statements for the upstream, or an action on the source.

    `share` is the time of the step: the elapsed share of sysbench's duration.
    """

    share: float
    sql: tuple[str, ...] = ()
    source: SourceIs = SourceIs.LEFT


PLAN = (
    Step(0.25, ("ALTER TABLE sbtest1 ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'as loaded'",)),
    Step(0.32, ("UPDATE sbtest1 SET note = CONCAT('row ', id) WHERE id % 10 = 0",)),
    Step(0.39, ("CREATE INDEX c_2 ON sbtest2 (c(20))",)),
    Step(
        0.46,
        (
            "CREATE TABLE picked (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, k INT,"
            " price DECIMAL(8,2), picked_at DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3))",
            "INSERT INTO picked (k, price) SELECT k, k / 7 FROM sbtest3 WHERE id % 20 = 0",
        ),
    ),
    Step(0.55, source=SourceIs.KILLED),
    Step(0.60, ("ALTER TABLE sbtest3 MODIFY COLUMN k BIGINT NOT NULL DEFAULT 0",)),
    Step(0.65, source=SourceIs.STARTED),
    Step(0.72, ("RENAME TABLE picked TO chosen",)),
    Step(
        0.79,
        (
            "ALTER TABLE chosen ADD COLUMN colour ENUM('red', 'green') AFTER k, DROP COLUMN price",
            "UPDATE chosen SET colour = IF(k % 2, 'red', 'green') WHERE id % 3 <> 0",
        ),
    ),
    Step(0.86, ("ALTER TABLE sbtest1 ADD INDEX note_1 (note), ALTER COLUMN note SET DEFAULT ''",)),
    Step(
        0.92,
        ("CREATE TABLE passing LIKE chosen", "INSERT INTO passing SELECT * FROM chosen",
         "DROP TABLE passing"),
    ),
)  # fmt: skip

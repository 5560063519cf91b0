"""DDL: plans text as history jobs (`plan_ddl`), and applies jobs to the schema (`Catalog`).

Both also work with other names (`rename_tables`, `route_change`).

    sql ── lexer ── parse ──> statements ── plan ──> DdlJob ── Catalog.apply ──> SchemaChange
                 (no catalog)            (`tables` builds the tables)

    syntax     tokens, and statements as frozen values       parse    text into statements
    charsets   names, ids, encodings                         rewrite  for other servers and names
    tables     CREATE and ALTER TABLE on one table           plan     statements into jobs

Followed, in MySQL's grammar with MariaDB's IF [NOT] EXISTS, also several statements in one text:

    CREATE | ALTER | DROP DATABASE     CREATE TABLE (…) | LIKE        DROP TABLE, TRUNCATE
    RENAME TABLE, several in one       CREATE | DROP INDEX            CREATE | ALTER | DROP VIEW
    CREATE | ALTER | DROP SEQUENCE     (MariaDB's)
    ALTER TABLE  ADD, DROP, MODIFY, CHANGE, RENAME COLUMN; FIRST, AFTER; ADD (a, b)
                 ADD, DROP, RENAME, ALTER INDEX; UNIQUE, PRIMARY, FULLTEXT, SPATIAL; DROP CONSTRAINT
                 SET | DROP DEFAULT, COMMENT, CHARSET, CONVERT TO, RENAME TO
                 ADD, DROP, TRUNCATE, EXCHANGE, CONVERT, REORGANIZE, COALESCE PARTITION

Passed on downstream untracked, because no row image depends on them: CHECK, foreign keys (their
index is tracked and written out), storage and engine options, partitions, ORDER BY, FORCE. The
effect of DROP, TRUNCATE or EXCHANGE PARTITION on rows has no binlog; it happens downstream because
the statement runs there, at its place in the order. Omitted downstream for the same reason:
ALGORITHM and LOCK, parsers of FULLTEXT, inline REFERENCES, COLUMN_FORMAT, NOT NULL on generated
columns, SRID of a column (values have theirs), TiDB's own options, and all of MariaDB's system
versioning (`versioning`): such a table is a plain table here, with its current rows. A key WITHOUT
OVERLAPS is a unique key over both ends of its period.

Refused: statements that make or lose rows without a binlog (CREATE TABLE … SELECT, MERGE,
tablespaces, ALTER IGNORE, triggers, events), a new column whose older values cannot be known
(AUTO_INCREMENT, a default such as UUID()), types without a row encoding (VECTOR, XMLTYPE), unique
keys over geometries, system versioning by numbers of transactions, routines, accounts, temporary
tables.

Where servers differ: for a character set without a collation, the collation in `charsets` is
written into the statement; a TIMESTAMP needs no default; "…" is a string; literals of TIMESTAMP are
in the time zone of the statement's session (`DdlContext`), UTC without a session. Older rows of a
column that is added with an expression as default have the value that a MySQL or MariaDB downstream
computes. For a column added with DEFAULT CURRENT_TIMESTAMP, older rows have the time of that
session, or else of the job's `finished_ts`: a downstream must run the statement at that time (`SET
TIMESTAMP`). MariaDB keeps JSON as text, so a source of a MariaDB makes a LONGTEXT of it
(`as_mariadb_reads`); elsewhere JSON is MySQL's.
"""

from penstock.ddl.catalog import Catalog, SchemaChange
from penstock.ddl.plan.planner import plan_ddl
from penstock.ddl.rewrite.routing import rename_tables, route_change
from penstock.ddl.successors import adopted, successors

__all__ = [
    "Catalog",
    "SchemaChange",
    "adopted",
    "plan_ddl",
    "rename_tables",
    "route_change",
    "successors",
]

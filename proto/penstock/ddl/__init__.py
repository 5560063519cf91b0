"""DDL: text into history jobs (`plan_ddl`), jobs into the schema they leave (`Catalog`), and both
under other names (`rename_tables`, `route_change`).

    sql ── lexer ── parse ──> statements ── plan ──> DdlJob ── Catalog.apply ──> SchemaChange
                 (no catalog)            (`tables` makes what they ask for)

    syntax     tokens, and statements as frozen values       parse    text into statements
    charsets   names, ids, encodings                         rewrite  for other servers and names
    tables     what CREATE and ALTER TABLE do to a table     plan     statements into jobs

Followed, in MySQL's grammar with MariaDB's IF [NOT] EXISTS, several statements at once if need be:

    CREATE | ALTER | DROP DATABASE     CREATE TABLE (…) | LIKE        DROP TABLE, TRUNCATE
    RENAME TABLE, several at once      CREATE | DROP INDEX            CREATE | ALTER | DROP VIEW
    CREATE | ALTER | DROP SEQUENCE     (MariaDB's)
    ALTER TABLE  ADD, DROP, MODIFY, CHANGE, RENAME COLUMN; FIRST, AFTER; ADD (a, b)
                 ADD, DROP, RENAME, ALTER INDEX; UNIQUE, PRIMARY, FULLTEXT, SPATIAL; DROP CONSTRAINT
                 SET | DROP DEFAULT, COMMENT, CHARSET, CONVERT TO, RENAME TO
                 ADD, DROP, TRUNCATE, EXCHANGE, CONVERT, REORGANIZE, COALESCE PARTITION

Passed on downstream untracked, because no row image depends on it: CHECK, foreign keys (their
index is tracked and written out), storage and engine options, partitions, ORDER BY, FORCE. What a
DROP, TRUNCATE or EXCHANGE PARTITION does to rows has no binlog; it happens downstream because the
statement runs there, at its place in the order. Left out downstream for the same reason: ALGORITHM
and LOCK, parsers of FULLTEXT, inline REFERENCES, COLUMN_FORMAT, NOT NULL on
generated columns, SRID of a column (values have theirs), TiDB's own options, and all of MariaDB's
system versioning (`versioning`): such a table is a plain one here, with its current rows. A key
WITHOUT OVERLAPS is a unique key over both ends of its period.

Refused: what makes or loses rows without a binlog (CREATE TABLE … SELECT, MERGE, tablespaces, ALTER
IGNORE, triggers, events), a new column whose older values cannot be known (AUTO_INCREMENT, a
default such as UUID()), types without a row encoding (VECTOR, XMLTYPE), unique keys over
geometries, system versioning by numbers of transactions, routines, accounts, temporary tables.

Where servers differ: a character set without a collation means the one in `charsets`, written into
the statement; a TIMESTAMP needs no default; "…" is a string; literals of TIMESTAMP are in the time
zone of the statement's session (`DdlContext`), UTC without one. Older rows of a column that is
added with an expression as default have the value that a MySQL or MariaDB downstream computes. A
column added with DEFAULT CURRENT_TIMESTAMP reads, in older rows, as the moment of that session, or
else of the job's `finished_ts`: a downstream has to run the statement at that time (`SET
TIMESTAMP`). MariaDB keeps JSON as text, so a source of one makes a LONGTEXT of it
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

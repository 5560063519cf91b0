"""Translates a MySQL or MariaDB server's binlog events to Penstock's rows and DDL.

    assembler              events to rows, ends of transactions and statements, in both framings
    outputs                the results; the table of a number, its transcoder or row count
    transcode              rows events to row bytes, by a function made for each pair of maps
    datums                 the code that makes a column's datum
    column_mapping         pairs the columns of an image with the table's
    ddl_pieces             a statement to DDL piece by piece, to nothing, or to a stop with a hint
    online_ddl             shadow tables of gh-ost and pt-osc
    statement_objects      which tables, or objects of its server, a statement changes
    statement_text         a statement's bytes under its session to text for `penstock.ddl`

All of it is pure: no clock, no socket, no thread. `Assembler.take(begin, end, event)` yields rows
(`TableChanges`), ends (`Finished`) and statements (`Statement`). The caller executes a statement
before it passes the next event, and calls `forget_tables` after it: transcoders are made for the
table's current version.

* A transcoder stops, naming schema, table and columns, when a table here differs from the server's
  table. Columns are matched by name if the server sends names (`binlog_row_metadata=FULL`), else by
  position; signs and charsets that it does not send are the table's own.
* Character sets and collations are the server's: defaults of a session are written into the
  statement, from its QUERY's status variables. The server is asked about a database that the
  cluster never saw, or that is routed into another. Statements are read in their client's charset,
  values in their column's, each by the server's own table; bytes that a charset does not have stop
  the source.
* A statement becomes pieces of one job each (`Translator`), with growing origins (`origins_of`), so
  that a repeated piece is done once. An unknown statement stops the source, unless an `Override`
  (skip, replace, inject) exists for it.
* Rows prepared by XA wait in memory, bounded. To get them again, events must be read from
  `restart`; `done` is the place up to which all others are done.
* Origins of one source must be committed in their order, each only when those before it hold: the
  Drainer skips a transaction whose origin is not beyond the last.
"""

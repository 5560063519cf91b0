"""From what a MySQL or MariaDB server wrote into its binlog to what Penstock's writers send.

    assembler              events to rows, ends of transactions and statements, in both framings
    mapped_tables          which table a number means, its transcoder, or the count of its rows
    outputs                what comes out
    transcoding/
      column_mapping       which column of an image is which one of the table
      datums               the code that makes a column's datum
      transcode            rows events to row bytes, by a function made for each pair of maps
      sequences            how far a MariaDB's sequences were given away
    statements/
      statement_text       a statement's bytes under its session to text for `penstock.ddl`
      ddl_pieces           a statement to DDL piece by piece, to nothing, or to a stop with a hint
      server_objects       which statements name an object of the server, and are skipped
      failed_statements    what a statement did that its server logged with an error
      online               shadow tables of gh-ost and pt-osc

All of it is pure: no clock, no socket, no thread. `Assembler.take(begin, end, event)` yields rows
(`TableChanges`), ends (`Finished`) and statements (`Statement`). The caller executes a statement
before it gives the next event, and calls `forget_tables` after it: transcoders are made for the
table as it is then.

* A transcoder stops with schema, table and columns named when a table here is not what it was
  there. Names count where the server sends them (`binlog_row_metadata=FULL`), positions else; signs
  and charsets that it does not send are the table's own.
* Character sets and collations are the server's: what a session left open is written into the
  statement, from its QUERY's status variables. A database that the cluster never saw, or that is
  routed into another, is asked for on the server. Statements are read in their client's charset,
  values in their column's, each by the server's own table; bytes that a charset does not have stop
  the source.
* A statement comes to pieces of one job each (`Translator`), with origins that grow (`origins_of`),
  so that a repeated one is done once. What is unknown stops, and an `Override` (skip, replace,
  inject) goes first.
* Rows that XA prepared wait in memory, bounded; `restart` is from where events must come again for
  them, with `done` as far as all else is.
* Origins of one source must be committed in their order, each only when those before it hold: the
  Drainer leaves out what is not beyond the last one.
"""

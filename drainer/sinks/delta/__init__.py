"""Delta tables: a lake that mirrors the upstream, or logs its changes, table by table.

    folder/
      shop/items/            a Delta table, as any reader of Delta takes it
      _penstock/checkpoint   a Delta table of one row: the checkpoint
      _penstock/versions     a Delta table: commit_ts, and the version of every table there
      _penstock/dropped/     tables that upstream has dropped, until the retention has passed
      _penstock/renaming/    tables between two names
      _penstock/ddl          of change logs, a Delta table: each statement with its commit_ts
      .lock                  held while something is written here

**Once.** Delta has transactions of one table, so a batch is a commit for each table that it
changes, and each commit has the batch's commit_ts as the version of an app transaction. Before the
first of them the checkpoint says up to where changes may be there (`applying`); a run that begins
after a crash cuts its first batch at the same place, and leaves alone every table whose app
transaction is there already. What is left is the same batch: compaction is a pure function. Should
it be cut elsewhere, because a setting that says which transactions are large has changed, a table
with a key still ends right: a batch sets each key to its last value, whatever was there. That is
why such a batch may also be merged into a table that has its first part.

**One state.** When all tables of a batch are there, a row of `versions` is written, then the
checkpoint. So a row names for one commit_ts the version of every table: all tables at these
versions are a state that upstream had. The newest versions alone may be from two batches. A row
that a crash left without its checkpoint is true, too.

**One writer.** The folder is locked while anything is written, and the checkpoint's writer is
compared as everywhere. A commit is made at the version that was read, or not at all; versions that
came since the last one known are looked through, and a stranger's stop the Drainer.
"""

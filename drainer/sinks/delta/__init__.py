"""Delta tables: a lake that mirrors the upstream, or logs its changes, table by table.

    folder/
      shop/items/            a Delta table, readable by any reader of Delta
      _penstock/checkpoint   a Delta table of one row: the checkpoint
      _penstock/versions     a Delta table: commit_ts, and the version of every table there
      _penstock/dropped/     tables that upstream has dropped, until the retention has passed
      _penstock/renaming/    tables between two names
      _penstock/ddl          of change logs, a Delta table: each statement with its commit_ts
      .lock                  held while something is written here

**Once.** A Delta transaction covers one table. A batch is therefore a commit for each table that it
changes, and each commit has the batch's commit_ts as the version of an app transaction. Before the
first of them the checkpoint records up to where changes may be there (`applying`). A run that
starts after a crash cuts its first batch at the same position, and skips every table that already
has the app transaction. The remaining changes are the same batch, because compaction is a pure
function. The batch may be cut elsewhere if a setting that decides which transactions are large has
changed. A table with a key is still right then, because a batch sets each key to its last value,
whatever the table held. For the same reason such a batch may also be merged into a table that has
its first part.

**One state.** When all tables of a batch are committed, a row of `versions` is written, then the
checkpoint. A row therefore names, for one commit_ts, the version of every table, and all tables at
these versions are a state of the upstream. The newest versions alone may be from two batches. A row
that a crash left without its checkpoint is also correct.

**One writer.** The folder is locked while anything is written, and the checkpoint's writer is
compared as in every sink. A commit succeeds only at the version that was read. The versions since
the last known one are inspected, and another program's version stops the Drainer.
"""

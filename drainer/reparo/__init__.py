"""Reparo: restores a folder of binlog files into tables, up to any commit_ts or time.

    files ── records after the target's checkpoint, up to the stop ──> rows, with the schema of then
          └─ DDL ──> the schema, and the target        compacted, as SQL ──> target, with checkpoint

It works as a Drainer does whose stream is the files: the same compaction, SQL, sinks and checkpoint
in the target. So it may be stopped, or killed, and started again; nothing is applied twice. A table
is read with the schema that held at its row: that of the file's beginning, moved on by the DDL in
the files. Files of TiDB-Binlog have no schema beside them; of those all must be there, from the
beginning of history on, or a file of CREATE statements is given.
"""

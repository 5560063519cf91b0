"""Reparo: restores a folder of binlog files into tables, up to any commit_ts or time.

    files ── records after the target's checkpoint, up to the stop ──> rows, with their schema
          └─ DDL ──> the schema, and the target        compacted, as SQL ──> target, with checkpoint

It works like a Drainer whose stream is the files: the same compaction, SQL, sinks and checkpoint in
the target. It may therefore be stopped, or killed, and started again; nothing is applied twice. A
table is read with the schema that held at its row: that of the file's beginning, advanced by the
DDL in the files. Files of TiDB-Binlog have no schema beside them; all of them must exist, from the
beginning of history on, or a file of CREATE statements is given.
"""

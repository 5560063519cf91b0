"""Files in TiDB-Binlog's format: every transaction and DDL in commit order, once.

    folder/
      .lock                                    held while something is written here
      savepoint                                the checkpoint, and its position in the files
      binlog-0000000000000000-20261122101500   records, oldest first; the numbers have no gap
      binlog-0000000000000001-20261122114210
      schema-0000000000000001                  the tables as they are where that file begins

**Once.** A batch is appended and synced; then the savepoint is replaced, which records the valid
end of the files. Bytes behind that position were never part of the output: readers end there, and
the next transaction first cuts them off. After a crash at any moment each transaction is therefore
in the files once. The same holds with a second Drainer, which the savepoint's writer reveals.

TiDB-Binlog's own tools can read these files; they ignore the savepoint and the schemas.
"""

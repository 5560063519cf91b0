"""Files in TiDB-Binlog's format: every transaction and DDL in commit order, once.

    folder/
      .lock                                    held while something is written here
      savepoint                                the checkpoint, and where in the files it is
      binlog-0000000000000000-20261122101500   records, oldest first; the numbers have no gap
      binlog-0000000000000001-20261122114210
      schema-0000000000000001                  the tables as they are where that file begins

**Once.** A batch is appended and synced, then the savepoint is replaced, which says up to where the
files hold. Whatever stands behind that place was never part of the output: readers end there, and
the next transaction begins by cutting it off. So a crash at any moment leaves each transaction in
the files once, and so does a second Drainer, which the savepoint's writer gives away.

TiDB-Binlog's own tools read these files: they look at no savepoint, and at no schema.
"""

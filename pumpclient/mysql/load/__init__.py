"""The initial load: copies the tables of one snapshot through the Pumps or into the downstream.

    global read lock ── every session starts its snapshot, the position is noted ── lock released
    for all target tables:   drop those of earlier attempts ── create, many under one DDL fence
    for each target table:   chunks ── done, saved once per second
        read in parallel ──┘ written in order, by one writer; or in parallel into the sink

Exactly once, whatever fails. A snapshot ends with its sessions, so an interrupted attempt cannot
continue: the next attempt takes another snapshot, at a later position. A target that was not done
is dropped and loaded completely again. A target that was done stays at its own position, its
*floor*. The binlog is then read from the first attempt's position. Of each table everything up to
its floor is skipped, because the load has it (`CatchUp` of the source). Until the binlog has passed
the last floor, each table is correct, but the tables are not consistent with each other.

Origins: (epoch, file 0, attempt << 40 | n). No binlog has number 0, so all of the load is before
all of the binlog of the same epoch. Writes that a stopped attempt still sends are before the writes
of its successor: the Drainer skips them.

Why an unfinished table restarts as a whole, and not by chunk: no server gives another snapshot of
the same position. Finished chunks would be of place P1, chunks after a kill of P2, and the binlog
between must reach only the rows of the finished chunks. That takes more than a floor for each
chunk:

* Which chunk owns a row? A range is defined in the server's collation. Here the collation is known
  for integers only.
* An UPDATE that moves a key from one range to another is an INSERT or a DELETE there.
* Unique values. Rows of P1 may be stale: a value that has moved from row 1 to row 9 is in both, if
  9 is in a later chunk. Its INSERT collides with a row that the binlog has not corrected yet, and
  an upsert would change the wrong row. So before later chunks are read, the binlog must have
  reached P2 in the downstream for the earlier chunks: the load would have to wait for the Drainer,
  or be limited to tables without other unique keys.
* DDL between P1 and P2. Later chunks are read in a form that the first chunks do not have; a
  TRUNCATE concerns only a part.

Applying the whole binlog from P1 to both parts, as upserts, does not help: rows would go back in
time for a while, with their unique values, and the Drainer's batches rely on states that the
upstream had. Instead the cost of a kill is bounded: tables are read one after the other, so only
the table that all readers were at is lost, sometimes the next, and small tables of the last second.
A lost session of the sink costs nothing.
"""

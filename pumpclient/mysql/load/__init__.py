"""The initial load: tables as they are at one moment, through the Pumps or into the downstream.

    global read lock ── every session begins its snapshot, the position is noted ── lock released
    for each target table:   drop what an attempt before left ── create ── chunks ── done, durably
                                              read in parallel ──┘ written in order, by one writer;
                                                                   or in parallel into the sink

Exactly once, whatever dies. A snapshot dies with its sessions, so an attempt that ended early can
never be continued as it was: the next one takes another snapshot, at a later position. A target
that was not done is dropped and loaded again whole; one that was done stays, as of its own
position, its *floor*. The binlog is then read from the first attempt's position, and of a table
everything up to its floor is left out, because the load has it (`state.Floors`). So until the
binlog has passed the last floor the tables are each right, but not of one moment.

Origins: (epoch, file 0, attempt << 40 | n). No binlog has number 0, so all of the load lies before
all of the binlog of the same epoch, and what a stopped attempt still sends lies before what its
successor sent: the Drainer leaves it out.

Why a table that is not done is begun again, and not a chunk: no server gives another snapshot of
the same moment. Chunks that are done would be of place P1, those after a kill of P2, and the binlog
between must reach only the rows of the former. That asks for more than a floor for each chunk:

* Whose row is it? A range is one in the server's collation. Here it is known for integers only.
* An UPDATE that takes a key from one range to another is an INSERT or a DELETE there.
* Unique values. What P1 has may be stale: a value that has gone from row 1 to row 9 is in both, if
  9 is in a later chunk. Its INSERT collides with a row that the binlog has not mended yet, and an
  upsert would change the wrong one. So before later chunks are read, the binlog must have reached
  P2 in the downstream for the earlier ones: the load would wait for the Drainer, or be for tables
  without other unique keys only.
* DDL between P1 and P2. The rest is read in a form that the first chunks do not have; TRUNCATE is
  over for a part.

Applying the whole binlog from P1 to both parts, as upserts, is no remedy: rows would go back in
time for a while, their unique values with them, and the Drainer's batches rely on states that the
upstream had. What a kill costs is bounded instead: tables are read one after the other, so it is
the one that all readers were at, and at times the next. A lost session of the sink costs nothing.
"""

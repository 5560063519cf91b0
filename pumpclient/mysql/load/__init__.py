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
"""

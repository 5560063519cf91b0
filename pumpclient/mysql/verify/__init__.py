"""Verifies a downstream against its MySQL or MariaDB upstream, and repairs rows that differ.

    chunk by chunk   a checksum of both sides by the servers ── equal: next chunk
                                                             └─ else row by row:
    1  upstream's rows, and the end of its binlog at that time
    2  wait, for a bounded time, until the downstream's checkpoint has reached that end
    3  downstream's rows and its commit_ts, in one snapshot
    4  upstream's rows again

An upstream row that was the same in 1 and 4 had one value throughout; the downstream, which was
beyond 1 and not beyond 4, must have that value. So neither side need be quiet. A difference must
persist in each of several rounds; a row that changed between 1 and 4 in every round stays
undecided, and is counted. Values are compared in a canonical form (`sides`), because servers may
represent them differently.
"""

"""Whether a downstream has what its MySQL or MariaDB upstream has; which rows differ; repair.

    chunk by chunk   a checksum of both sides by the servers ── equal: next chunk
                                                             └─ else row by row:
    1  upstream's rows, and how far its binlog is then
    2  wait, for a bounded time, until the downstream's checkpoint is there
    3  downstream's rows and its commit_ts, in one snapshot
    4  upstream's rows again

A row that upstream was the same in 1 and 4 had one value all the while; the downstream, which was
beyond 1 and not beyond 4, must have that value. So neither side need be quiet. What differs must do
so in each of several rounds; what changed between 1 and 4 in every round stays undecided, and is
counted. Values are compared in one form (`values`), so that servers may differ in theirs.
"""

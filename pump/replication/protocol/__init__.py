"""Replication protocol for a Pump's log on other Pumps, without clock, thread or socket.

    primary             ships the log, and reports the data that enough disks have
    replica             decides what to accept, to cut, and to report as synced; how it claims a log
    chain               the comparison of logs, with each other and with their entry
    messages            the messages of both sides, also as protobuf, and their actions

Events are methods, and each returns the actions that it asks for. `pump.replication` carries
them out.
With one copy nothing of this is on a disk or a wire.

The rules. R1: a listed disk has all acknowledged data, from its first segment on. R2: acknowledged
data is synced on every listed disk, and enough disks are listed. R3: a disk accepts nothing of an
epoch before its promised epoch. R4: epoch and list change by a swap in etcd only.
R5: equal segment and epoch mean equal bytes. R6: only a listed or eligible disk takes over, and
only with a complete replica. R7: a new replica starts where everything before is settled, and
nothing is appended in an epoch before its start is settled. R8: the address in etcd follows the
entry. R9: only acknowledged data is indexed and streamed, and nothing is dropped that a Drainer
needs. R10: a damaged replica is re-initialised off every list, in an epoch after it has reported
the damage, in place of that damage only. R13: after the timestamp of a
watermark was taken, all disks that an acknowledgement needs confirm the epoch.
`tests/kit/replicas/switches.py` switches off each of them, and a simulation must notice.

The duties of its callers:

clock       Takes a timestamp before `confirm`, and publishes it as a watermark only once that is
            `confirmed` (R13).
storage     Carries out `Begin` (`Segments.begin_next`), and after it writes a group reports
            `appended`, `own_synced`, or `abandoned` with the last good place. Answers, indexes and
            publishes up to `Acknowledge`, also after a start, because recovered data may be
            unacknowledged. Appends only while `is_ready`. In a lasting wait, Prewrites are refused
            as Retryable, and Commits wait. Leaves no mark of a clean shutdown in a segment that was
            never acknowledged, because a frame there proves that all data before it is settled.
follower    `ReplicaLog` on a `ReplicaSegments` (`penstock/log/replica.py`), each in a separate
            thread (`pump/replication/replicas.py`). Either the follower, or a Pump after a failover
            to that folder, holds the folder's lock. So no request bypasses a primary on the same
            disk, which would have to hear of it by `outran`.
shipper     A stream for each follower: reads the bytes of an `Append` from the log and sends them
            along; a `Prepend` is a separate call, in pieces, because live groups must not wait for
            it. `connected` when a stream starts, `silent` after its time-out.
entry       `penstock.cluster.log_entry`: carries out `Swap` and `ReadEntry`, which is repeated
            until an answer comes; passes watched entries to `entry_seen`.
take-over   Starts a `Claim` on a replica when the primary has been silent, and at each start of a
            Pump; a suspicion may be wrong. After a claim is won, opens the folder as a storage.
membership  Puts the status with a comparison of the entry's `revision` (R8); offers disks by
            `candidate`; reports by `needs` the segments that Drainers and open transactions need.

When an action fails, or on `StepDown`, the state in memory is dropped and the folder reopened.
"""

"""Copies of a Pump's log on other Pumps: the protocol, without clock, thread or socket.

    proposal, claim     how a disk becomes the primary of a log: by compare-and-swap in etcd
    primary             ships the log, and says what enough disks have
    replica             what a copy takes, cuts, and says that it has
    chain, messages     what logs are compared by; what both sides say, and ask to be done
    wire                the same as protobuf
    followed_log        does on the disk what a replica asks for

Events are methods, and each returns the actions that it asks for. `pump.copies` carries them out.
With one copy nothing of this is on a disk or a wire.

The rules. R1: a listed disk has all that was acknowledged, from its first segment on. R2: what is
acknowledged is synced on every listed disk, and there are enough of them. R3: a disk takes nothing
of an epoch before the one that it has promised. R4: epoch and list change by a swap in etcd only.
R5: equal segment and epoch mean equal bytes. R6: only a listed or eligible disk takes over, and
only a whole copy. R7: a new copy begins where everything before is settled, and nothing is appended
in an epoch before its beginning is. R8: the address in etcd follows the entry. R9: only what is
acknowledged is indexed and streamed, and nothing is dropped that a Drainer needs. R10: a damaged
copy begins again off every list, in an epoch after it has said so, in place of that damage only.
`tests/kit/replicas/rules.py` switches off each of them, and a simulation must notice.

What its shells have to do:

storage     Carries out `Begin` (`Segments.begin_next`), and after it writes a group reports
            `appended`, `own_synced`, or `abandoned` with the last good place. Answers, indexes and
            publishes up to `Acknowledge`; after a start too: what a recovery finds may be
            unacknowledged. Appends only while `is_ready`: Prewrites are refused as Retryable where
            that will last, Commits wait. Leaves no mark of a clean stop in a segment that was never
            acknowledged, for a frame there would say that all before it is settled.
follower    `FollowedLog` on a `CopiedLog` (`penstock/log/copied_log.py`), each in a thread of its
            own (`pump/copies/followed_logs.py`). The folder's lock is the follower's or that of a
            Pump that took over there: so no request passes by a primary on the same disk, which
            would have to hear of it by `outran`.
shipper     A stream for each follower: reads the bytes of an `Append` from the log and sends them
            along; a `Prepend` is a call of its own, in pieces, for live groups must not wait for
            it. `connected` when a stream begins, `silent` after `replica-timeout-s`.
entry       `penstock.cluster.log_entries`: carries out `Swap` and `ReadEntry`, which is repeated
            until there is an answer; shows what is watched to `entry_seen`.
take-over   Starts a `Claim` on a copy when the primary has been silent, and at each start of a
            Pump; a suspicion may be wrong. A claim that was won opens the folder as a storage.
membership  Puts the status with a comparison of the entry's `revision` (R8); offers `spare` disks;
            reports by `needs` what Drainers and open transactions still need.

When an action fails, or on `StepDown`, what is in memory is dropped and the folder opened again.
"""

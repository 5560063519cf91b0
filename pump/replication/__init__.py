"""Replication of logs to other Pumps: carries out the decisions of `protocol`.

                 this Pump's own log                    other Pumps' logs
claiming         is it still ours? an epoch of it
shipping         its groups, until enough disks have it
shipper          … to one replica       ── wire ──>     replicas, one thread each
replica_log                                             … its files, on the primary's requests
failover                                                a Pump on a local replica
repair           corrupted bytes are restored  <── wire ──  other disks with the log
scrubbing        reads all data on the disk periodically
peers            other Pumps' disks: the next replica's, and those to read from
draining         before this Pump ends: hand over its replicas, and its own log
replication      the parts of this that a Pump runs, from its start to its end
"""

"""Replication of logs to other Pumps: carries out the decisions of `pump.replicas`.

                 this Pump's own log                    other Pumps' logs
claiming         is it still ours? an epoch of it
shipping         its groups, until enough disks have it
shipper          … to one replica       ── wire ──>     followed logs, one thread each
takeover                                                failover: a Pump on a local replica
repairs          corrupted bytes are restored  <── wire ──  other disks with the log
scrubbing        reads all data on the disk periodically
recruits         chooses the disk for the next replica
leaving, moving  before this Pump ends: hand over its replicas, and its own log
replication      the parts of this that a Pump runs, from its start to its end
"""

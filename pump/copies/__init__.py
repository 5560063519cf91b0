"""Copies of logs on other Pumps: what carries out what `pump.replicas` decides.

                 this Pump's own log                    other Pumps' logs
claiming         is it still ours? an epoch of it
shipping         its groups, until enough disks have it
shipper          … to one copy          ── wire ──>     followed logs, one thread each
takeover                                                a Pump on a copy whose primary is silent
repairs          bytes that have rotted, put back  <── wire ──  other disks with the log
scrubbing        all that is on the disk is read now and then
recruits         which disk the next copy goes to
leaving, moving  before this Pump ends: the copies that it has, and its own log
replication      what of this a Pump has, from its start to its end
"""

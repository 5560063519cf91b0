"""Copies of logs on other Pumps: what carries out what `pump.replicas` decides.

                 this Pump's own log                    other Pumps' logs
claiming         is it still ours? an epoch of it
shipping         its groups, until enough disks have it
shipper          … to one copy          ── wire ──>     followed logs, one thread each
replication      what of this a Pump has, from its start to its end
"""

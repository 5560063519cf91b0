"""Replicates a server's changes into a Penstock cluster.

    relay receiver ──> relay log ──> syncer: reader ─> assembler ─> groups ──> Pumps
                                        │
                                        └─ DDL: all before it is committed, then `execute_ddl`

Exactly once: a transaction carries its origin (epoch, file, position), and the Drainer skips a
transaction whose origin is not beyond the last origin it has seen. Therefore the checkpoint in etcd
may lag: repeated transactions are recognised downstream. The checkpoint is stored before and after
each DDL, so that no row is repeated after a DDL that changed its table. Large transactions, and all
of them if a Pump is older, take two phases. The journal in `data-dir` settles those that were open
at a kill: they are rolled back, or committed to the end where Commits may have been sent.

Consecutive transactions go to a Pump in groups, each in one call; the next group is prepared during
this (`pumpclient.delivery.group_commit`). Their order is the server's. A run of events is
processed in one call (`Assembler.take_run`), because the cost of a transaction is mostly Python:
sysbench's four changes are 14 events.
"""

"""A server's changes into a Penstock cluster: relay log, filters, routes, transactions, checkpoint.

    relay receiver ──> relay log ──> syncer: reader ─> assembler ─> groups ──> Pumps
                                        │
                                        └─ DDL: all before it is committed, then `execute_ddl`

Exactly once: a transaction's origin (epoch, file, position) travels with it, and the Drainer leaves
out what is not beyond the last one. So the checkpoint in etcd may lag; what comes again is known
downstream. It is stored before and after each DDL, so that no row comes again after the DDL that
changed its table. What was under way at a kill is settled by the journal in `data-dir`: rolled
back, or committed to its end where Commits may have been sent.

Consecutive transactions go to a Pump in groups: all Prewrites, one call for all `commit_ts`, all
Commits; the next group is made meanwhile. Their order is the server's. A run of events is taken at
once (`Assembler.take_run`): what a transaction costs is mostly Python, 14 events for sysbench's
four changes.
"""

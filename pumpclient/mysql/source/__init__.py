"""A server's changes into a Penstock cluster: relay log, filters, routes, transactions, checkpoint.

    relay unit ──> relay log ──> syncer: reader ─> assembler ─> groups ──> Pumps
                                    │
                                    └─ DDL: all before it is committed, then `execute_ddl`

Exactly once: a transaction's origin (epoch, file, position) travels with it, and the Drainer leaves
out what is not beyond the last one. The checkpoint may lag; what comes again is known downstream.
"""

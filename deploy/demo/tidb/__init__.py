"""`make demo SOURCE=tidb`: a TiDB under sysbench's load is replicated into a MariaDB.

    sysbench ──> TiDB ── binlog ──> Pumps ──> Drainer, Spark ──> MariaDB
                  └──── a PD and a TiKV: cluster id, timestamps, etcd, and what became of whom ────┘

The TiDB is killed once with all that its sessions had open, and starts again.
"""

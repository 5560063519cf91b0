"""`make demo SOURCE=tidb`: replicates a TiDB under sysbench's load into a MariaDB.

    sysbench ──> TiDB ── binlog ──> Pumps ──> Drainer, Spark ──> MariaDB
                  └── a PD and a TiKV: cluster id, timestamps, etcd, transactions' outcomes ───┘

The TiDB is killed once with all that its sessions had open, and restarted.
"""

"""`make demo SOURCE=mysql`: replicates a MariaDB under sysbench's load into another MariaDB.

    sysbench ──> MariaDB ── binlog ──> penstock source ──> Pumps ──> Drainer, Spark ──> MariaDB

The tables exist before the source starts, so it loads them first, while sysbench changes them.
"""

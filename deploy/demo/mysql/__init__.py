"""`make demo SOURCE=mysql`: a MariaDB under sysbench's load is replicated into another one.

    sysbench ──> MariaDB ── binlog ──> mysql-source ──> Pumps ──> Drainer, Spark ──> MariaDB

The tables are there before the source starts, so it loads them first, while sysbench changes them.
"""

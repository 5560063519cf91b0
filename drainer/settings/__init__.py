"""A Drainer's settings, its own and those under TiDB-Binlog's names."""

"""Settings: a Drainer's own, and those under TiDB-Binlog's names."""

"""What stands for a TiDB in tests: its history of DDL, and the status ports of its servers."""

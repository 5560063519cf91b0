"""Files in TiDB-Binlog's format, read without any of the product's code."""

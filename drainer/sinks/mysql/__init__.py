"""MySQL, MariaDB or TiDB as the downstream."""

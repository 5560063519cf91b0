"""Binlogs of MySQL and MariaDB: written, read, followed and loaded."""

"""Relay log: stores every merged binlog on a local disk before it changes the downstream."""

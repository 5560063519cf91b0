"""Translates a server's statements to DDL that a writer executes."""

"""A server's statements to DDL that a writer executes."""

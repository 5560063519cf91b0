"""Store: the log and its index; durable when `append` returns, pulled in commit order."""

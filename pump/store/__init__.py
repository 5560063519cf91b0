"""The log and its index: durable when `append` returns, in commit order when pulled."""

"""A DDL of the stream: its job, what an operator decided, what is to run."""

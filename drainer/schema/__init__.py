"""Schema: tracks the schema at each point of the stream."""

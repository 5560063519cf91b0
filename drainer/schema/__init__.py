"""The schema at each point of the stream."""

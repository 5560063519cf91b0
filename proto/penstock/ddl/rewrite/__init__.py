"""A statement for another server, or under other names."""

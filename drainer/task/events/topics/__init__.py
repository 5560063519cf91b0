"""Topics: formats in which a message is a row, with its topic, its key and its partition."""

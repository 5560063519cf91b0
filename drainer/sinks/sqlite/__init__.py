"""One SQLite file as the downstream."""

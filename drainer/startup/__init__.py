"""How a Drainer is put together from its settings."""

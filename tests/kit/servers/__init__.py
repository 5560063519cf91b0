"""Real servers and nodes, each with its fixture."""

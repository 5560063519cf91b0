"""What a Drainer tells of itself."""

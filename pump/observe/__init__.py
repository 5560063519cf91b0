"""What a Pump tells of itself."""

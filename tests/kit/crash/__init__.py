"""What dies, tears, fills up or hangs, at a chosen moment."""

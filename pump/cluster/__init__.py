"""A Pump among the others: its name, its status, its time, what it may let go of."""

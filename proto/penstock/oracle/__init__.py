"""The cluster's time: a client of the timestamp oracle, and the oracle itself."""

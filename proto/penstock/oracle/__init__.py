"""The cluster's time: a client of the oracle, and the oracle itself."""

"""Cluster: a Drainer's status, its methods, and its role as the writer of a downstream."""

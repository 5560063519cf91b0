"""Cluster: a Drainer among the others; its status, its methods, who writes the downstream."""

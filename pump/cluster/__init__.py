"""A Pump's part in the cluster: identity, membership, time, retention, and open transactions."""

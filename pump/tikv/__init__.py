"""A Pump's queries to the PD and the TiKV of a TiDB cluster, by their own gRPC."""

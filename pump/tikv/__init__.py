"""What a Pump asks of the PD and the TiKV of a TiDB cluster, by their own gRPC."""

"""The whole cluster under chaos: `make chaos MINUTES=60`."""

"""Service: the gRPC services for writers and Drainers, with group commit and pulls behind them."""

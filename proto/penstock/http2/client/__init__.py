"""Client: calls of gRPC over our own end of HTTP/2, for threads that block and event loops."""

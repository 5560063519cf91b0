"""Strangers to talk to our HTTP/2: a bare peer, gRPC's own test service, and a server's process."""

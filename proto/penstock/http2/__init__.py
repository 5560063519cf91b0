"""HTTP/2 as gRPC speaks it: frames, header blocks, flow control, and both ends of a connection."""

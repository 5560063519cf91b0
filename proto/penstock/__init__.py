"""What the nodes of a Penstock cluster agree on: messages, bytes on disk, keys, and time."""

import os

# gRPC's core writes lines of its own to standard error, from its first use on (`node.logs`).
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__version__ = "0.1.0"

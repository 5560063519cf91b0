"""Definitions that the nodes of a Penstock cluster share: messages, file formats, keys, time."""

import os

# gRPC's core writes lines to standard error from its first use on (`node.logs`).
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__version__ = "0.2.0"

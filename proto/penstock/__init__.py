"""What the nodes of a Penstock cluster agree on: messages, bytes on disk, keys, and time."""

__version__ = "0.1.0"

"""Requests: parses a method's request, and answers invalid bytes as the caller's error.

With a deserializer in the handler gRPC would answer INTERNAL or UNKNOWN, as for a defect of ours.
"""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import DecodeError


async def parsed(message: Any, data: bytes, context: Any) -> Any:
    """Parse `data` as a message of a class, or end the call with INVALID_ARGUMENT."""
    try:
        return message.FromString(data)
    except DecodeError as error:
        text = f"undecodable {message.DESCRIPTOR.name} of {len(data)} bytes: {error}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        raise AssertionError("abort has raised") from error

"""Pull refusals: hints for what a Pump answers to a pull or a fetch that waiting cannot cure."""

from __future__ import annotations

import grpc

HINTS = {
    grpc.StatusCode.OUT_OF_RANGE: "restore the downstream from a newer backup and start after it",
    grpc.StatusCode.DATA_LOSS: "repair or replace the Pump's damaged file",
    grpc.StatusCode.FAILED_PRECONDITION: "check the cluster that this Drainer was pointed at",
    grpc.StatusCode.PERMISSION_DENIED: "check the cluster that this Drainer was pointed at",
    grpc.StatusCode.INVALID_ARGUMENT: "Pump and Drainer must run compatible versions",
}
"""What an operator can do about errors of a Pump that waiting cannot cure."""

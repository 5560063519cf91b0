"""Pull refusals: hints for a Pump's errors on a pull or a fetch that retrying cannot resolve."""

from __future__ import annotations

import grpc

HINTS = {
    grpc.StatusCode.OUT_OF_RANGE: "restore the downstream from a newer backup and start after it",
    grpc.StatusCode.DATA_LOSS: "repair or replace the Pump's damaged file",
    grpc.StatusCode.FAILED_PRECONDITION: "check the cluster that this Drainer was pointed at",
    grpc.StatusCode.PERMISSION_DENIED: "check the cluster that this Drainer was pointed at",
    grpc.StatusCode.INVALID_ARGUMENT: "Pump and Drainer must run compatible versions",
}
"""An operator's remedy by error of a Pump that retrying cannot resolve."""

"""A Pump as it was before it had the method `WriteDecided`: sources write to it in two phases."""

from __future__ import annotations

from typing import Any

from pump.__main__ import main
from pump.penstock_service import PenstockService

_methods = PenstockService.methods


def _without_decided(service: PenstockService) -> dict[str, Any]:
    methods = _methods(service)
    del methods["WriteDecided"]
    return methods


if __name__ == "__main__":
    PenstockService.methods = _without_decided  # type: ignore[method-assign, assignment]
    raise SystemExit(main())

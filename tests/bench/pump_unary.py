"""Compatible calls on one Pump, one binlog each, as TiDB makes them: by our server and by grpcio's.

A figure is of our own engine and its baseline of `server-engine = "grpcio"`, both in the same
run with the same client over bare HTTP/2 (`pump_unary_load`). `detail` has the CPU time that both
sides took for a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.bench.figure import Figure
from tests.bench.pump_rig import Measured, Rig

SIZES = {"1k": 1 << 10, "10k": 10 << 10, "100k": 100 << 10}
WORKERS = (1, 16, 64, 256)
SECONDS = 2.0
PULLED = 20_000
_CLIENT = "tests.bench.pump_unary_load"


def measure(home: Path) -> Iterator[Figure]:
    """Yield `pump.unary.<size>.w<workers>` and `pump.unary.pull.1k`."""
    with (
        Rig(home / "own", sync=True, engine="http2") as own,
        Rig(home / "grpcio", sync=True, engine="grpcio") as other,
    ):
        for size, value_bytes in SIZES.items():
            for workers in WORKERS:
                both = [
                    rig.load(
                        value_bytes=value_bytes, writers=workers, seconds=SECONDS, client=_CLIENT
                    )
                    for rig in (own, other)
                ]
                yield figure(f"{size}.w{workers}", *both, calls=2, value_bytes=value_bytes)
        both = [_pull(rig) for rig in (own, other)]
        yield figure("pull.1k", *both, calls=1, value_bytes=SIZES["1k"])


def _pull(rig: Rig) -> Measured:
    after_ts = rig.next_ts()
    filled = rig.load(value_bytes=SIZES["1k"], writers=256, seconds=SECONDS)
    count = min(PULLED, filled.transactions)
    return rig.load(
        value_bytes=0, writers=0, seconds=0, client=_CLIENT, first_ts=after_ts, pulled=count
    )


def figure(name: str, own: Measured, other: Measured, *, calls: int, value_bytes: int) -> Figure:
    """Return one figure; a transaction has so many calls."""
    detail = own.detail(value_bytes)
    for key in ("client_cpu_us", "server_cpu_us"):
        detail[key] = round(detail[key] / calls, 1)
    detail["grpcio_client_cpu_us"] = round(other.client_us / calls, 1)
    detail["grpcio_server_cpu_us"] = round(other.server_us / calls, 1)
    return Figure(
        name=f"pump.unary.{name}",
        value=own.rate * calls,
        unit="calls/s" if calls > 1 else "binlogs/s",
        baseline=other.rate * calls,
        detail=detail,
    )

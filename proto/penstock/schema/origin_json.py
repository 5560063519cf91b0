"""An origin as JSON, in the DDL history: {source, epoch, file, position, gtid}."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from penstock.errors import Malformed
from penstock.wire.binlog import Origin


def origin_to_json(origin: Origin) -> dict[str, Any]:
    """Return where something was made."""
    return asdict(origin)


def origin_from_json(fields: Mapping[str, Any]) -> Origin:
    """Read what `origin_to_json` wrote; Malformed when it is none."""
    try:
        return Origin(
            source=str(fields["source"]),
            epoch=int(fields["epoch"]),
            file=int(fields["file"]),
            position=int(fields["position"]),
            gtid=str(fields.get("gtid", "")),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Malformed(
            f"an origin in etcd cannot be read: {error!r}",
            hint="it has a source, and an epoch, a file and a position that are numbers",
        ) from error

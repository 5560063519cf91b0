"""Schema snapshot: the schema at one point of the stream as bytes, for a start or for a task.

    | part     | bytes | content                                                             |
    |----------|-------|---------------------------------------------------------------------|
    | magic    | 8     | `PSTSCHM2`                                                          |
    | checksum | 32    | SHA-256 of all that follows                                         |
    | body     | rest  | zlib of JSON: its origin, and the tracker's state                   |

It is a cache of the history in etcd and may be deleted. If a snapshot is damaged or ahead of the
checkpoint, it is not used, and history is read from the start.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import asdict, dataclass, fields
from typing import Any

from drainer.schema.tracker import SchemaTracker
from penstock.codes import Code
from penstock.errors import Corrupt

MAGIC = b"PSTSCHM2"
_HEADER_BYTES = len(MAGIC) + hashlib.sha256().digest_size
assert _HEADER_BYTES == 40, "the table above says so"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOrigin:
    """A snapshot's origin: the DDL up to which it goes, and the history."""

    cluster_id: int
    commit_ts: int
    schema_version: int
    last_job_id: int
    revision: int
    """The mark up to which all jobs are in the snapshot: etcd's revision, or a schema version."""
    overrides: dict[str, Any]
    """The overrides of DDL that it was made under, as JSON, by commit_ts."""


def pack(tracker: SchemaTracker, origin: SnapshotOrigin) -> bytes:
    body = {**asdict(origin), **tracker.state()}
    packed = zlib.compress(json.dumps(body, ensure_ascii=False).encode(), 1)
    return MAGIC + hashlib.sha256(packed).digest() + packed


def pack_for_tasks(tracker: SchemaTracker) -> bytes:
    """Return a snapshot without an origin: a task reads rows with it and continues no history."""
    version = tracker.version
    origin = SnapshotOrigin(
        cluster_id=0, commit_ts=0, schema_version=version, last_job_id=0, revision=0, overrides={}
    )
    return pack(tracker, origin)


def unpack(data: bytes, path: str) -> tuple[SchemaTracker, SnapshotOrigin]:
    """Unpack the data of `pack`; raise `Corrupt` naming `path` for anything else."""
    packed = data[_HEADER_BYTES:]
    if not data.startswith(MAGIC):
        raise Corrupt(
            path,
            0,
            "no schema snapshot of this version of Penstock",
            code=Code.DRAINER_FILE_DAMAGED,
        )
    if data[len(MAGIC) : _HEADER_BYTES] != hashlib.sha256(packed).digest():
        raise Corrupt(
            path,
            len(MAGIC),
            "the schema snapshot does not match its checksum",
            code=Code.DRAINER_FILE_DAMAGED,
        )
    body: dict[str, Any] = json.loads(zlib.decompress(packed))
    origin = SnapshotOrigin(**{field.name: body[field.name] for field in fields(SnapshotOrigin)})
    return SchemaTracker.from_state(origin.schema_version, body), origin

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
from dataclasses import dataclass
from typing import Any

from drainer.differences.drift import Drift
from drainer.schema.rules import ALL_RULES, FENCED
from drainer.schema.tracker import SchemaTracker, State
from penstock.codes import Code
from penstock.errors import Corrupt
from penstock.schema.tidb_json import (
    job_from_json,
    job_to_json,
    schema_from_json,
    schema_to_json,
    table_from_json,
    table_to_json,
)

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
    state = tracker.state()
    body = {
        "cluster_id": origin.cluster_id,
        "commit_ts": origin.commit_ts,
        "schema_version": origin.schema_version,
        "last_job_id": origin.last_job_id,
        "revision": origin.revision,
        "overrides": origin.overrides,
        "schemas": [schema_to_json(schema) for schema in state.schemas],
        "versions": [
            [since, schema, is_now, table_to_json(table)]
            for since, schema, is_now, table in state.versions
        ],
        "gone": [list(each) for each in state.gone],
        "deviations": {str(i): d.to_json() for i, d in state.drifts.items()},
        "absent_schemas": state.absent_schemas,
        "blind_ts": state.blind_ts,
    }
    if state.rules is not FENCED:
        body["rules"] = state.rules.name
        body["doubtful"] = [job_to_json(job) for job in state.doubtful]
    packed = zlib.compress(json.dumps(body, ensure_ascii=False).encode(), 1)
    return MAGIC + hashlib.sha256(packed).digest() + packed


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
    origin = SnapshotOrigin(
        cluster_id=body["cluster_id"],
        commit_ts=body["commit_ts"],
        schema_version=body["schema_version"],
        last_job_id=body["last_job_id"],
        revision=body["revision"],
        overrides=body["overrides"],
    )
    tracker = SchemaTracker.from_state(
        origin.schema_version,
        State(
            schemas=[schema_from_json(each) for each in body["schemas"]],
            versions=[(since, s, now, table_from_json(t)) for since, s, now, t in body["versions"]],
            gone=[(a, b, c, d) for a, b, c, d in body["gone"]],
            drifts={int(i): Drift.from_json(d) for i, d in body["deviations"].items()},
            absent_schemas=body["absent_schemas"],
            blind_ts=body["blind_ts"],
            doubtful=[job_from_json(each) for each in body.get("doubtful", ())],
            rules=ALL_RULES[body.get("rules", FENCED.name)],
        ),
    )
    return tracker, origin

"""Overrides of DDL that are still to come, in etcd, one set for each Drainer.

    /penstock/v1/ddl_decisions/<node id>/<commit_ts, 20 digits>   JSON, see `drainer.overrides`

They stand beside the history that they correct. A Drainer reads them when it starts; they can be
changed as long as it is stopped before the DDL.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from drainer.overrides import Override
from penstock.errors import Malformed
from penstock.etcd import EtcdClient, etcd_errors, read_prefix

OVERRIDES = "/penstock/v1/ddl_decisions/"


def made_now() -> str:
    """Return the present as an override notes it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def record(etcd: EtcdClient, node_id: str, override: Override) -> None:
    """Keep an override, in place of an earlier one about the same DDL; may be Retryable."""
    with etcd_errors(etcd):
        etcd.put(_key(node_id, override.commit_ts), json.dumps(override.to_json()))


def forget(etcd: EtcdClient, node_id: str, commit_ts: int) -> None:
    """Remove an override; may be Retryable."""
    with etcd_errors(etcd):
        etcd.delete(_key(node_id, commit_ts))


def overrides(etcd: EtcdClient, node_id: str) -> dict[int, Override]:
    """Return a Drainer's overrides by commit_ts; may be Retryable or Malformed."""
    items, _ = read_prefix(etcd, f"{OVERRIDES}{node_id}/")
    found = {}
    for key, value in items.items():
        try:
            commit_ts = int(key.rpartition("/")[2])
            found[commit_ts] = Override.from_json(commit_ts, json.loads(value))
        except (ValueError, KeyError, TypeError) as error:
            raise Malformed(
                f"{key} in etcd is no override of a DDL: {value!r}",
                hint="`drainer ddl list` shows the DDL; `drainer ddl track` or another of its"
                " commands writes the override again",
            ) from error
    return found


def _key(node_id: str, commit_ts: int) -> str:
    return f"{OVERRIDES}{node_id}/{commit_ts:020d}"

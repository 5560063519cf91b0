"""Overrides of DDL that are still to come, as older versions kept them: in etcd, by Drainer.

    /penstock/v1/ddl_decisions/<node id>/<commit_ts, 20 digits>   JSON, see `overrides`

They are read as long as the checkpoint does not say that it has all overrides, which is so from the
first one on that this version stores.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from drainer.differences.overrides import Override
from penstock.cluster.etcd import EtcdClient, read_prefix
from penstock.errors import Malformed

OVERRIDES = "/penstock/v1/ddl_decisions/"


def overrides(etcd: EtcdClient, node_ids: Iterable[str]) -> dict[int, Override]:
    """Return the overrides of these Drainers by commit_ts, the last one's in case of doubt.

    It may be Retryable or Malformed.
    """
    found = {}
    for node_id in node_ids:
        items, _ = read_prefix(etcd, f"{OVERRIDES}{node_id}/")
        for key, value in items.items():
            try:
                commit_ts = int(key.rpartition("/")[2])
                found[commit_ts] = Override.from_json(commit_ts, json.loads(value))
            except (ValueError, KeyError, TypeError) as error:
                raise Malformed(
                    f"{key} in etcd is no override of a DDL: {value!r}",
                    hint="delete it in etcd; `drainer ddl list` shows the DDL, and `drainer ddl"
                    " track` or another of its commands writes the override again",
                ) from error
    return found

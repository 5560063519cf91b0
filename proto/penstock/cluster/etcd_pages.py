"""A long list of keys in etcd, read page by page: no answer and no list in memory is ever huge."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.cluster.etcd import EtcdClient, etcd_errors
from penstock.pb.etcd import rpc_pb2

PAGE_KEYS = 500


def read_pages(
    etcd: EtcdClient, prefix: str, *, after_revision: int = 0, page_keys: int = PAGE_KEYS
) -> Iterator[tuple[str, bytes, int]]:
    """Return (key, value, create revision) of all keys below an ASCII prefix, in key order.

    Only keys created after `after_revision`. A key that comes while this reads may be among them
    or not. Retryable when etcd does not answer.
    """
    start, end = prefix.encode(), _end(prefix)
    while True:
        request = rpc_pb2.RangeRequest(
            key=start,
            range_end=end,
            limit=page_keys,
            min_create_revision=after_revision + 1 if after_revision else 0,
        )
        with etcd_errors(etcd):
            answer = etcd.kvstub.Range(request, etcd.timeout, metadata=etcd.metadata)
        for kv in answer.kvs:
            yield kv.key.decode(), kv.value, kv.create_revision
        if not answer.more or not answer.kvs:
            return
        start = answer.kvs[-1].key + b"\0"


def is_any_from(etcd: EtcdClient, prefix: str, key: str) -> bool:
    """Tell whether any key below an ASCII prefix is `key` or comes after it; may be Retryable."""
    request = rpc_pb2.RangeRequest(
        key=key.encode(), range_end=_end(prefix), limit=1, keys_only=True
    )
    with etcd_errors(etcd):
        return bool(etcd.kvstub.Range(request, etcd.timeout, metadata=etcd.metadata).kvs)


def _end(prefix: str) -> bytes:
    start = prefix.encode()
    return start[:-1] + bytes([start[-1] + 1])

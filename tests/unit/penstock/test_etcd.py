"""Endpoints, and which failure of etcd's is whose."""

import sys
import time
from typing import Any

import pytest

from penstock.cluster.etcd import EtcdClosed, connect, etcd_errors, is_bad, read, warn_of_version
from penstock.errors import NeedsOperator, Retryable
from penstock.local.process import free_port
from penstock.pb.etcd import rpc_pb2


@pytest.mark.parametrize("urls", ["", [], "localhost", "http://", "10.0.0.1:x", "https://a:1,b:1"])
def test_an_endpoint_that_is_none_is_for_the_operator(urls: str | list[str]) -> None:
    with pytest.raises(NeedsOperator):
        connect(urls)


def test_a_host_that_cannot_be_resolved_may_come_back() -> None:
    with pytest.raises(Retryable, match="resolve"):
        connect("no-such-host.invalid:2379,127.0.0.1:2379")


def test_an_etcd_that_is_away_is_retryable_at_once() -> None:
    client = connect(f"127.0.0.1:{free_port()}", timeout_s=600)
    start_s = time.monotonic()
    with pytest.raises(Retryable):
        read(client, "/a")
    # In real time, since connections are: it does not wait for its time-out of 600 s.
    assert time.monotonic() - start_s < 60
    client.close()


def test_a_closed_client_says_so() -> None:
    client = connect(f"127.0.0.1:{free_port()}")
    client.close()
    with pytest.raises(EtcdClosed):
        read(client, "/a")


def test_our_own_mistakes_stay_what_they_are() -> None:
    with pytest.raises(ValueError, match="mine"), etcd_errors():
        raise ValueError("mine")


def test_the_stubs_are_ours() -> None:
    assert sys.modules["etcd3.etcdrpc"].RangeRequest.__module__ == "penstock.pb.etcd.rpc_pb2"


def test_releases_of_etcd_that_lose_writes_are_known() -> None:
    bad = [
        v for v in ("3.4.23", "3.5.0", "3.5.1", "3.5.2", "3.5.3", "3.5.16", "3.6.0") if is_bad(v)
    ]
    assert bad == ["3.5.0", "3.5.1", "3.5.2"]


def test_a_node_warns_of_an_etcd_that_loses_writes(
    etcd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    version = etcd.maintenancestub.Status(rpc_pb2.StatusRequest(), timeout=5).version
    with caplog.at_level("WARNING"):
        warn_of_version(etcd)
    assert ("use 3.5.3 or later" in caplog.text) == is_bad(version)

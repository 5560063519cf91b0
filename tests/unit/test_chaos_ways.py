"""A Pump that another one starts is reached by the proxy of its machine."""

import os
import socket

import pytest

from tests.chaos.machine import listening
from tests.chaos.ways import Ways
from tests.kit.crash.slow_proxy import SlowProxy
from tests.kit.wait import eventually

MACHINE = f"127.251.{os.getpid() // 250 % 250}.{1 + os.getpid() % 250}"
CALLER = f"127.252.{os.getpid() // 250 % 250}.{1 + os.getpid() % 250}"


def test_a_port_that_opens_on_a_machine_opens_at_the_callers_address_and_goes_with_it() -> None:
    with SlowProxy("127.0.0.1:1", callers={CALLER: "a caller"}) as proxy, Ways({MACHINE: proxy}):
        with socket.create_server((MACHINE, 0)) as server:
            port = server.getsockname()[1]
            assert port in listening()[MACHINE]
            eventually(lambda: port in listening().get(CALLER, ()))
            with socket.create_connection((CALLER, port), 5) as line:
                accepted, _ = server.accept()
                with accepted:
                    accepted.sendall(b"here")
                    assert line.recv(4) == b"here"
                    proxy.client = "a caller"
                    proxy.reset()
                    with pytest.raises(ConnectionResetError):
                        line.recv(1)
        eventually(lambda: port not in listening().get(CALLER, ()))

"""Ports for servers on this machine: what one process was given no other is."""

import socket
import subprocess
import sys

from penstock.local.process import free_port
from penstock.node.http_status import PORT_ABOVE

ASK = "from penstock.local.process import free_port; print(*(free_port() for _ in range(50)))"


def test_processes_begun_together_are_given_different_ports_none_of_them_for_status_pages() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    given = [set(map(int, each.communicate(timeout=60)[0].split())) for each in processes]
    together = set().union(*given)
    assert len(together) == 2 * 50
    assert not together & {port + PORT_ABOVE for port in together}


def test_a_port_on_which_somebody_listens_is_not_given() -> None:
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        assert taken not in {free_port() for _ in range(1000)}

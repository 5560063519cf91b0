"""Backups of a real etcd: one is taken, and put back after the cluster has moved on."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

from deploy.local.etcd import EtcdServer, program
from penstock.cluster.etcd import connect

_MEMBER = ("--name", "--initial-cluster=", "--initial-advertise-peer")


def take(server: EtcdServer, to: Path) -> Path:
    """Write what etcd has now to a file."""
    with to.open("wb") as file, closing(connect(server.url)) as etcd:
        etcd.snapshot(file)
    return to


def put_back(server: EtcdServer, backup: Path) -> None:
    """Stop etcd, restore a backup in the place of its data, and start it."""
    server.stop()
    (flag,) = (each for each in server.command if each.startswith("--data-dir="))
    data = Path(flag.partition("=")[2])
    shutil.rmtree(data)
    command = [str(Path(program()).with_name("etcdctl")), "snapshot", "restore", str(backup), flag]
    command += [each for each in server.command if each.startswith(_MEMBER)]
    subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "ETCDCTL_API": "3"}, timeout=60
    )
    server.start()

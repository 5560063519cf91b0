"""Backups of a real etcd: one is taken, and put back after the cluster has moved on."""

import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

from penstock.cluster.etcd import connect
from penstock.local.etcd import EtcdServer, program

_RESTORE_S = 120
_DATA = "--data-dir="
_MEMBER = ("--name", "--initial-cluster=", "--initial-advertise-peer")


def take(server: EtcdServer, to: Path) -> Path:
    with to.open("wb") as file, closing(connect(server.url)) as etcd:
        etcd.snapshot(file)
    return to


def put_back(server: EtcdServer, backup: Path) -> None:
    """Stop etcd, restore a backup in the place of its data, and start it.

    If the restore fails, etcd is down with the data that it had.
    """
    server.stop()
    (data,) = (Path(each.partition("=")[2]) for each in server.command if each.startswith(_DATA))
    restored = data.with_name("restored")
    shutil.rmtree(restored, ignore_errors=True)
    command = [str(Path(program()).with_name("etcdctl")), "snapshot", "restore", str(backup)]
    command += [f"{_DATA}{restored}", *(e for e in server.command if e.startswith(_MEMBER))]
    environment = {**os.environ, "ETCDCTL_API": "3"}
    subprocess.run(command, check=True, capture_output=True, env=environment, timeout=_RESTORE_S)
    shutil.rmtree(data)
    restored.rename(data)
    server.start()

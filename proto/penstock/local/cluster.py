"""A whole Penstock cluster as child processes: etcd or a PD, Pumps, one Drainer, its downstream.

The downstream is a SQLite, files, a MariaDB (`sink="mysql"`) or a dedicated Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from penstock.cluster import etcd
from penstock.cluster.log_entry import LogEntries
from penstock.cluster.node_registry import NodeKind, NodeState, Registry
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.local.etcd import EtcdServer
from penstock.local.kafka import KafkaServer
from penstock.local.process import ServerProcess, free_port, python_module
from penstock.local.sql_server import MariadbServer, PdAndTikv
from penstock.ts import seconds_between

ONLINE_S_MAX = 60.0


class Cluster:
    """Starts in the order of dependence, stops in the reverse; use as a context manager."""

    def __init__(
        self,
        home: Path,
        *,
        pumps: int = 3,
        copies: int = 1,
        sink: str = "sqlite",
        with_drainer: bool = True,
        pd: PdAndTikv | None = None,
        drainer_options: Sequence[str] = (),
    ) -> None:
        """With a `pd` its etcd, its timestamps and its cluster id are the cluster's.

        The text after `kafka` is added to the Kafka's URL: `kafka?format=debezium&prefix=shop`.
        """
        self.home = home
        self.etcd = pd or EtcdServer(home / "etcd")
        self._copies = copies
        self._drainer_options = drainer_options
        sink, _, options = sink.partition("?")
        self._at = ["--etcd-urls", self.etcd.url, *(["--pd-address", pd.url] if pd else [])]
        self.mariadb = MariadbServer(home / "mariadb") if sink == "mysql" else None
        self.kafka = KafkaServer(home / "kafka") if sink == "kafka" else None
        self._downstream = [each for each in (self.mariadb, self.kafka) if each]
        self.pumps = {f"pump-{n}": self._pump(f"pump-{n}") for n in range(1, pumps + 1)}
        self.sink_url = self.mariadb.url if self.mariadb else f"sqlite:///{home / 'downstream.db'}"
        if sink == "files":
            self.sink_url = f"file://{quote(str(home / 'files'))}"
        elif sink == "delta":
            self.sink_url = f"delta://{home / 'lake'}?interval=2s"
        if self.kafka:
            self.sink_url = f"kafka://{self.kafka.address}/?{options}"
        self.drainer_addr = f"127.0.0.1:{free_port()}"
        self.drainer = self.drainer_at("drainer-1", self.drainer_addr)
        self._with_drainer = with_drainer

    def _pump(self, name: str) -> ServerProcess:
        command = python_module("pump", "--node-id", name, *self._at)
        command += ["--addr", f"127.0.0.1:{free_port()}", "--data-dir", str(self.home / name)]
        if self._copies > 1:
            command += ["--copies", str(self._copies)]
        return ServerProcess(command, log=self.home / f"{name}.log")

    def drainer_at(self, name: str, addr: str) -> ServerProcess:
        """Return a Drainer of the same downstream; the caller starts and stops it."""
        command = python_module("drainer", "--node-id", name, *self._at)
        sink = self.mariadb.url_without_password if self.mariadb else self.sink_url
        command += ["--addr", addr, "--sink", sink, *self._drainer_options]
        command += ["--data-dir", str(self.home / name)]
        return ServerProcess(command, log=self.home / f"{name}.log")

    @property
    def nodes(self) -> dict[str, ServerProcess]:
        return {**self.pumps, **({"drainer-1": self.drainer} if self._with_drainer else {})}

    def __enter__(self) -> Cluster:
        try:
            self.etcd.start()
            for server in self._downstream:
                server.install()
                server.start()
            for node in self.nodes.values():
                node.start()
            self.wait_online()
        except BaseException:
            self.stop()
            raise
        return self

    def start_drainer(self) -> None:
        self._with_drainer = True
        self.drainer.start()
        self.wait_online()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        for node in (self.drainer, *self.pumps.values(), *self._downstream, self.etcd):
            node.stop()

    def wait_online(self) -> None:
        """Return once all nodes report online; raise with the log of a node that exited."""
        client = etcd.connect(self.etcd.url)
        try:
            registry = Registry(client)
            deadline = time.monotonic() + ONLINE_S_MAX
            while True:
                statuses = registry.list(NodeKind.PUMP) + registry.list(NodeKind.DRAINER)
                online = {s.node_id for s in statuses if s.state is NodeState.ONLINE}
                missing = self.nodes.keys() - (online - self._without_copies(client))
                if not missing:
                    return
                for name in missing:
                    if not self.nodes[name].is_running or time.monotonic() > deadline:
                        raise Retryable(
                            f"{name} is not online:\n{self.nodes[name].log_tail()}",
                            Code.CHILD_FAILED,
                        )
                time.sleep(0.1)
        finally:
            client.close()

    def _without_copies(self, client: etcd.EtcdClient) -> set[str]:
        if self._copies == 1:
            return set()
        entries = LogEntries(client)
        found = {name: entries.read(name) for name in self.pumps}
        files = {name: self.home / name / ".disk" for name in self.pumps}
        disks = {name: file.read_text().strip() for name, file in files.items() if file.exists()}
        return {
            name
            for name, listed in found.items()
            if listed is None
            or listed[0].primary.disk != disks.get(name, "")
            or 1 + len(listed[0].replicas) < self._copies
        }


def lag_s(commit_ts: int, applied_ts: int) -> float:
    """Return how many seconds of commits the downstream is behind; 0 when it has everything."""
    if applied_ts >= commit_ts:
        return 0.0
    return max(0.0, seconds_between(applied_ts, commit_ts))

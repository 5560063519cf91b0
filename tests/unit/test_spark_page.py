"""The commands and the settings of the page about a Spark cluster are those that the demo runs."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from drainer.settings import compat
from penstock.local import FILES
from penstock.local.cluster import Cluster
from penstock.local.demo.flights import SPARK_TASKS
from penstock.local.spark_cluster import SparkCluster

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "deploy/README.md").read_text(encoding="utf-8")
OF_THE_DEMO = ("--node-id", "--addr")
"""Options of a node that is one of several on a machine."""


def of_the_page(program: str) -> list[list[str]]:
    section = PAGE.split("## Spark on a cluster\n")[1].split("\n## ")[0]
    return [
        shlex.split(line) for line in re.findall(rf"^{program}\b.*", section, flags=re.MULTILINE)
    ]


def shape(command: Sequence[str]) -> list[str]:
    """Return the names of the options, and the words that are no address, port or path."""
    kept = re.compile(r"--|\d[g\d]?$|org\.apache|parallel$")
    ports = {"--port", "--webui-port"}
    pairs = zip(("", *command), command, strict=False)
    return sorted(word for before, word in pairs if before not in ports and kept.match(word))


def test_the_demo_starts_master_and_workers_by_the_commands_of_the_page(tmp_path: Path) -> None:
    cluster = SparkCluster(tmp_path)
    master, worker = of_the_page("spark-class")
    assert shape(cluster.master.command) == shape(master)
    assert master[1].endswith(".Master")
    (exported,) = of_the_page("export SPARK_MASTER_OPTS")
    assert cluster.master.environment is not None
    demos = cluster.master.environment["SPARK_MASTER_OPTS"].split()
    documented = exported[1].partition("=")[2].split()
    assert [each.split("=")[0] for each in demos] == [each.split("=")[0] for each in documented]
    for each in cluster.workers:
        assert shape(each.command) == shape(worker)
    assert worker[-1].startswith("spark://")
    cores = int(worker[worker.index("--cores") + 1])
    assert len(cluster.workers) * cores == SPARK_TASKS


def test_the_demo_starts_the_drainer_by_the_command_of_the_page(tmp_path: Path) -> None:
    (documented,) = of_the_page("penstock drainer")
    options = [*SparkCluster(tmp_path).drainer_options(), "--apply-mode", "parallel"]
    command = Cluster(tmp_path, drainer_options=options).drainer.command
    assert [w for w in shape(command) if w not in OF_THE_DEMO] == shape(documented)


def test_the_demo_has_the_settings_of_the_sample_with_its_own_addresses(tmp_path: Path) -> None:
    cluster = SparkCluster(tmp_path)
    ours, _ = compat.load_settings(cluster.drainer_options(), prog="drainer")
    sample = ["--config", str(FILES / "spark/standalone.toml")]
    theirs, _ = compat.load_settings(sample, prog="drainer")
    assert ours.spark.master == cluster.url
    assert ours.spark.tasks == theirs.spark.tasks == SPARK_TASKS
    assert ours.spark.payloads == theirs.spark.payloads == "executors"
    names = [[each.split("=")[0] for each in side.spark.conf] for side in (ours, theirs)]
    assert names[0] == names[1]
    assert ours.apply == theirs.apply

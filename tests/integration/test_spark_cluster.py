"""The same job on a real Spark cluster: the tasks are in other JVMs' Python processes, the code
comes to them in a zip, the rows from the Pumps, and a machine that goes away changes nothing."""

import threading

import pytest

from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.fix_spark import HarmedCluster, kill_tree

pytestmark = pytest.mark.thorough


@pytest.mark.fault(
    "a worker with all below it is killed, another comes; a Pump dies and comes back",
    "the other one's tasks do the work; equal",
    cases="1",
)
@pytest.mark.slow
def test_a_cluster_s_tasks_do_the_work_and_a_lost_worker_changes_nothing(
    replication: Replication, spark_cluster: HarmedCluster
) -> None:
    pumps = [replication.add_pump() for _ in range(2)]
    drainer = replication.add_drainer(spark_master=spark_cluster.url, spark_tasks=2)
    drainer.wait_for(r"executors fetch the payloads(.|\n)*2 in all", 90)
    # Below the Drainer there is only the driver's JVM; the tasks and their code are at the workers.
    assert not [child for child in drainer.children() if "python" in child.name()]
    assert len(list(spark_cluster.home.glob("spark-worker-*/app-*/*/penstock.zip"))) == 2
    writer = replication.begin(21)
    writer.transact(30)
    writer.bulk(2000)
    replication.check(drainer)

    kill_tree(spark_cluster.workers[0])
    writer.transact(30)
    writer.bulk(2000)
    replication.check(drainer)
    drainer.wait_for("is lost, 1 are left")

    writer.transact(30)
    pumps[0].kill()  # With rows of which the Drainer may know the metadata only.
    waiting = threading.Timer(2, pumps[0].start)
    waiting.start()
    writer.transact(20)
    waiting.join()
    writer.bulk(2000)
    replication.check(drainer)

    spark_cluster.workers[0].start()
    drainer.wait_for(r"is lost(.|\n)*2 in all", 90)
    writer.transact(30)
    replication.check(drainer)

"""`lost-ddl` lets writers continue without a DDL that a restored etcd does not have.

Writers refuse to continue while a Pump's stream has a newer DDL than the history in etcd (PS-2205).
The command records in etcd that the job will never be recorded. The stream keeps the DDL, and a
Drainer that has not passed it stops there.
"""

from __future__ import annotations

import argparse
from typing import Any

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.node.output import show
from pumpclient.binlogctl.lost import confirm
from pumpclient.binlogctl.nodes import Cluster


def add_command(commands: Any, shared: argparse.ArgumentParser) -> None:
    command = commands.add_parser(
        "lost-ddl",
        parents=[shared],
        help="give up a DDL that an etcd restored from a backup does not have",
    )
    command.add_argument("job", type=int, metavar="JOB", help="the job that the error names")
    command.add_argument(
        "--confirm", metavar="JOB", default="", help="the job once more, for scripts"
    )
    command.set_defaults(run=_lost_ddl)


def _lost_ddl(arguments: argparse.Namespace) -> int:
    job_id, cluster = arguments.job, Cluster(arguments)
    with cluster:
        confirm(arguments, str(job_id), "continue without this DDL")
        job = cluster.history.roll_back(job_id)
    if job is not None:
        raise NeedsOperator(
            f"DDL job {job_id} is in the history in etcd: {job.query!r}",
            hint="nothing is lost: start the writers",
            code=Code.DDL_HISTORY,
        )
    text = f"DDL job {job_id}: given up; writers continue with the history in etcd"
    show(arguments, {"job_id": job_id}, text)
    return 0

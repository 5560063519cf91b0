"""Fixtures for real servers, one plug-in each; a test that uses a server has its mark."""

import asyncio
import inspect
import os

import pytest
from hypothesis import settings

pytest_plugins = [
    "tests.kit.servers.fix_etcd",
    "tests.kit.servers.fix_kafka",
    "tests.kit.servers.fix_mariadb",
    "tests.kit.servers.fix_mysql",
    "tests.kit.http2.fix_front",
    "tests.kit.servers.fix_pump",
    "tests.kit.servers.fix_s3",
    "tests.kit.servers.fix_copies",
    "tests.kit.servers.fix_source",
    "tests.kit.servers.fix_drainer",
    "tests.kit.servers.fix_spark",
    "tests.kit.servers.fix_quick_start",
    "tests.kit.servers.fix_replication",
    "tests.kit.servers.fix_tidb",
    "tests.kit.servers.fix_tidb_alone",
]

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


_GRPC_VERBOSITY = os.environ.get("GRPC_VERBOSITY", "NONE")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Undo what a node's `main` set in this process; every program of a test would inherit it."""
    os.environ["GRPC_VERBOSITY"] = _GRPC_VERBOSITY


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a new event loop, for at most a minute."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), 60))
    return True


FIXTURES_OF = {
    "etcd": {"etcd_server", "etcd", "fresh_etcd", "etcd_cluster"},
    "kafka": {"kafka_server", "kafka", "fresh_kafka"},
    "mariadb": {"mariadb_server", "mariadb", "mariadb_binlog", "mariadb_new_server", "mariadb_new"},
    "mysql": {"mysql_server", "mysql"},
    "spark": {"spark_cluster", "spark_session", "drainer_factory"},
    "tidb": {"tidb_server", "tidb", "tidb_rig"},
    "slow": {"kafka_server", "kafka", "fresh_kafka", "s3_server", "s3"},
    "alone": {"tidb_rig"},
}
"""Marks, and the fixtures whose tests have them: a machine bears the TiDBs of one file only."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of each server, and the cases that `main_case` makes thorough."""
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        for mark, fixtures in FIXTURES_OF.items():
            if fixtures & names:
                item.add_marker(mark)
    _mark_other_cases(items)


def _mark_other_cases(items: list[pytest.Item]) -> None:
    """Of a test of which no case has the text of its `main_case`, all cases run by default."""
    others: dict[str, list[pytest.Item]] = {}
    with_main: set[str] = set()
    for item in items:
        mark = item.get_closest_marker("main_case")
        if mark is not None:
            test, _, case = item.nodeid.partition("[")
            if mark.args[0] in case:
                with_main.add(test)
            else:
                others.setdefault(test, []).append(item)
    for test in with_main:
        for item in others.get(test, ()):
            item.add_marker("thorough")

"""Fixtures for real servers, one plug-in each; a fixture marks the tests that use it."""

import pytest
from hypothesis import settings

pytest_plugins = [
    "tests.kit.servers.fix_etcd",
    "tests.kit.servers.fix_kafka",
    "tests.kit.servers.fix_mariadb",
    "tests.kit.servers.fix_mysql",
    "tests.kit.http2.fix_front",
    "tests.kit.servers.fix_pump",
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as `thorough` all cases of a test but those that its mark `main_case` selects."""
    without_case: set[str] = set()
    with_case: set[str] = set()
    for item in items:
        mark = item.get_closest_marker("main_case")
        if mark is not None:
            test = item.nodeid.partition("[")[0]
            is_main = mark.args[0] in item.name.partition("[")[2]
            (with_case if is_main else without_case).add(test)
            if not is_main:
                item.add_marker("thorough")
    unknown = sorted(without_case - with_case)
    if unknown and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"no case of {unknown[0]} has the text that main_case gives")

"""Fixtures for real servers, one plug-in each; a fixture marks the tests that use it."""

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

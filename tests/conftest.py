"""Fixtures for real servers, one plug-in each; a fixture marks the tests that use it."""

pytest_plugins = [
    "tests.kit.fix_etcd",
    "tests.kit.fix_mariadb",
    "tests.kit.fix_pump",
    "tests.kit.fix_drainer",
    "tests.kit.fix_spark",
]

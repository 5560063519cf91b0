"""Fixtures for real servers, one plug-in each; a fixture marks the tests that use it."""

from hypothesis import settings

pytest_plugins = [
    "tests.kit.fix_etcd",
    "tests.kit.fix_mariadb",
    "tests.kit.fix_mysql",
    "tests.kit.fix_pump",
    "tests.kit.fix_source",
    "tests.kit.fix_drainer",
    "tests.kit.fix_spark",
]

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")

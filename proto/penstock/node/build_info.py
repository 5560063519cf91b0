"""Build info: the metric that says which version a node is of, by Prometheus' convention."""

from __future__ import annotations

import platform

from prometheus_client.core import GaugeMetricFamily, Metric

from penstock import __version__


def build_info() -> Metric:
    """Return `penstock_build_info`, which is 1, with what is known as its labels."""
    family = GaugeMetricFamily(
        "penstock_build_info", "1, with the version as a label.", labels=["version", "python"]
    )
    family.add_metric([__version__, platform.python_version()], 1.0)
    return family

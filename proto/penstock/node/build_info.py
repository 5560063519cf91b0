"""Build info: the metric that shows a node's version, by Prometheus' convention."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Final

from penstock import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric

NAME: Final = "penstock_build_info"
ABOUT: Final = "1, with the version as a label."
LABELS: Final = {"version": __version__, "python": platform.python_version()}


def build_info() -> Metric:
    """Return the metric; a node without that Prometheus package writes it out itself."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(NAME, ABOUT, labels=list(LABELS))
    family.add_metric(list(LABELS.values()), 1.0)
    return family

"""Metrics of a kind that Pump and Drainer both give out; for whoever has `prometheus_client`."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import HistogramMetricFamily, Metric

from penstock.node.histogram import Distribution

Labels = tuple[str, ...]
"""The values of a metric's labels, in their order."""


def histogram(name: str, about: str, values: Mapping[Labels, Distribution], *labels: str) -> Metric:
    """Return a histogram of every distribution."""
    family = HistogramMetricFamily(name, about, labels=labels)
    for told, distribution in values.items():
        family.add_metric(told, distribution.labelled_buckets(), sum_value=distribution.sum)
    return family

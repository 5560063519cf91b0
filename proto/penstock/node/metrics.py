"""Metrics: histograms that count values by bucket, and the metric that shows a node's version.

Counting is cheap enough for every call. It uses no clock and no lock, because only one thread
writes each histogram.
"""

from __future__ import annotations

import platform
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Distribution:
    """Counts by bucket; one search and two additions for each value."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def note(self, value: float, times: int = 1) -> None:
        """Count a value in the first bucket whose bound is not below it."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def note_sorted(self, values: Sequence[float]) -> None:
        """Count monotonic values, all together if they fall into a single bucket."""
        if not values:
            return
        first = bisect_left(self._bounds, values[0])
        if first != bisect_left(self._bounds, values[-1]):
            for value in values:
                self.note(value)
            return
        self._counts[first] += len(values)
        self.sum += sum(values)

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[float, int]]:
        """Return each bound with the number of values up to it; the last bound is infinite."""
        found, so_far = [], 0
        for bound, count in zip((*self._bounds, float("inf")), list(self._counts), strict=True):
            so_far += count
            found.append((bound, so_far))
        return found

    def labelled_buckets(self) -> list[tuple[str, float]]:
        return [
            ("+Inf" if bound == float("inf") else f"{bound:.15g}", float(count))
            for bound, count in self.buckets()
        ]


Labels = tuple[str, ...]
"""The values of a metric's labels, in their order."""


def histogram(name: str, about: str, values: Mapping[Labels, Distribution], *labels: str) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, about, labels=labels)
    for labelled, distribution in values.items():
        family.add_metric(labelled, distribution.labelled_buckets(), sum_value=distribution.sum)
    return family


OPEN_METRICS: Final = "application/openmetrics-text"
_HEAD: Final = re.compile(r"^# (HELP|TYPE) (\S+) (.*)$", re.MULTILINE)


def is_open_metrics_asked(accept: str) -> bool:
    """Return whether an `Accept` prefers OpenMetrics to Prometheus' text format."""
    weights = {OPEN_METRICS: 0.0, "text/plain": 0.0}
    for each in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        q = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        if kind in weights and re.fullmatch(r"[01](\.[0-9]{0,3})?", q):
            weights[kind] = max(weights[kind], float(q))
    return weights[OPEN_METRICS] > 0 and weights[OPEN_METRICS] >= weights["text/plain"]


def open_metrics(text: str) -> str:
    """Return metrics in Prometheus' text format as OpenMetrics, with the same samples."""
    counters = {f[2] for f in _HEAD.finditer(text) if f[1] == "TYPE" and f[3] == "counter"}

    def head(found: re.Match[str]) -> str:
        kind, name, about = found.groups()
        name = name.removesuffix("_total") if name in counters else name
        if kind == "TYPE":
            return f"# TYPE {name} {'unknown' if about == 'untyped' else about}"
        return "# HELP {} {}".format(name, about.replace('"', r"\""))

    return f"{_HEAD.sub(head, text)}# EOF\n"


BUILD_NAME: Final = "penstock_build_info"
BUILD_ABOUT: Final = "1, with the version as a label."
BUILD_LABELS: Final = {"version": __version__, "python": platform.python_version()}


def build_info() -> Metric:
    """Return the metric; a node without that Prometheus package writes it out itself."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(BUILD_NAME, BUILD_ABOUT, labels=list(BUILD_LABELS))
    family.add_metric(list(BUILD_LABELS.values()), 1.0)
    return family

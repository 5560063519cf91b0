"""Histogram: counts values by bucket, and makes Prometheus metrics of the counts.

Counting is cheap enough for every call. It uses no clock and no lock, because only one thread
writes each histogram.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric


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
    family = HistogramMetricFamily(name, about, labels=labels)
    for labelled, distribution in values.items():
        family.add_metric(labelled, distribution.labelled_buckets(), sum_value=distribution.sum)
    return family

"""Asks a node's HTTP pages."""

import urllib.error
import urllib.request
from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.parser import text_string_to_metric_families

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def asked(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, method=method, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def scraped(url: str) -> dict[str, float]:
    """Return all samples of the node's metrics, by name with its labels."""
    code, text = asked(url + "metrics")
    assert code == 200, text
    return samples_of(text_string_to_metric_families(text))


def scraped_as_open_metrics(url: str) -> dict[str, float]:
    """Return the same samples, read from the node's answer to a caller that takes OpenMetrics."""
    code, text = asked(url + "metrics", Accept=OPEN_METRICS)
    assert code == 200, text
    assert text.endswith("\n# EOF\n")
    families = open_metrics.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return samples_of(families)


def samples_of(families: Iterable[Metric]) -> dict[str, float]:
    found = {}
    for family in families:
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found

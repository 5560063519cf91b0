"""Asks a node's HTTP pages."""

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def asked(url: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(url, method=method)
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
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found

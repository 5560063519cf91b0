"""Opened sinks: the sink of a URL, as the class that a test expects."""

from __future__ import annotations

from typing import Any

from drainer.sinks.opening import open_sink
from drainer.sinks.protocol import EventSink, TableSink


def open_event_sink(url: str, **options: Any) -> EventSink:
    sink = open_sink(url, **options)
    assert isinstance(sink, EventSink), sink
    return sink


def open_lake_sink(url: str, **options: Any) -> TableSink:
    sink = open_sink(url, **options)
    assert isinstance(sink, TableSink), sink
    return sink

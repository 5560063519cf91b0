"""Sink target: the target of a URL, as the class that a test expects."""

from typing import TypeVar

from drainer.settings.targets import Target, target_of

T = TypeVar("T", bound=Target)


def sink_target(cls: type[T], url: str) -> T:
    found = target_of(url)
    assert isinstance(found, cls), found
    return found

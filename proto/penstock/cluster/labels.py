"""Labels of Pumps: `name=value` in settings, {"labels": {name: value}} in the status in etcd."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.codes import Code
from penstock.errors import NeedsOperator


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Parse labels such as "zone=a", "disk=fast"; `NeedsOperator` for anything else."""
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not name or not equals or not value or "=" in value:
            raise NeedsOperator(
                f"{text!r} is not a label", hint="write name=value: zone=a", code=Code.SETTING_VALUE
            )
        if labels.setdefault(name, value) != value:
            raise NeedsOperator(
                f"the label {name} has two values",
                hint="give it once",
                code=Code.SETTING_VALUE,
            )
    return labels


def published(labels: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the field `label` of a status, None when there are no labels."""
    return {"labels": dict(labels)} if labels else None


def labels_in(field: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the labels in the field `label` of a status, ignoring invalid labels."""
    found = field.get("labels") if isinstance(field, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def matches(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return wanted.items() <= labels.items()


def text_of(labels: Mapping[str, str]) -> str:
    """Return labels as they are written in settings."""
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))

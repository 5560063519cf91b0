"""One measured figure, beside what it is measured against."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`baseline` is of the same unit and the same run; None where there is nothing to compare."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the figure as the benchmark prints it."""
        ratio = self.value / self.baseline if self.baseline else None
        return {
            "name": self.name,
            "value": round(self.value, 3),
            "unit": self.unit,
            "baseline": None if self.baseline is None else round(self.baseline, 3),
            "ratio": None if ratio is None else round(ratio, 3),
            "detail": self.detail,
        }


def percentile(values: list[float], share: float) -> float:
    """Return the value that `share` of the sorted `values` do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

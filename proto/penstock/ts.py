"""Timestamp: milliseconds and a counter in 64 bits.

 63                                             18 17                  0
+-------------------------------------------------+---------------------+
| milliseconds since the epoch                    | counter             |
+-------------------------------------------------+---------------------+
"""

LOGICAL_BITS = 18
LOGICAL_END = 1 << LOGICAL_BITS


def compose(physical_ms: int, logical: int) -> int:
    """Return the timestamp of a millisecond and a counter below `LOGICAL_END`."""
    assert 0 <= logical < LOGICAL_END
    return physical_ms << LOGICAL_BITS | logical


def physical_ms(ts: int) -> int:
    """Return the milliseconds since the epoch that a timestamp carries."""
    return ts >> LOGICAL_BITS


def seconds_between(earlier_ts: int, later_ts: int) -> float:
    """Return the seconds from one timestamp to another, negative if the second is earlier."""
    return (physical_ms(later_ts) - physical_ms(earlier_ts)) / 1000

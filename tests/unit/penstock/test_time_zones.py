"""Which zone a server's SYSTEM is, by what it shows at sample moments."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from penstock.schema.ddl_context import SHOWN_SQL, shows, zone_shown

MOMENTS = [int(text) for text in re.findall(r"\((\d+)\)", SHOWN_SQL)]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def row(name: str) -> list[datetime]:
    zone = ZoneInfo(name)
    return [(EPOCH + timedelta(seconds=at)).astimezone(zone).replace(tzinfo=None) for at in MOMENTS]


@pytest.mark.parametrize(("name", "found"), [("UTC", "+00:00"), ("Etc/GMT-3", "+03:00")])
def test_a_zone_without_changes_is_an_offset(name: str, found: str) -> None:
    assert zone_shown(row(name)) == found


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/New_York", "Asia/Shanghai"])
def test_a_zone_is_found_by_what_it_shows(name: str) -> None:
    found = zone_shown(row(name), "CET")
    assert found is not None
    assert row(found) == row(name)
    assert shows(row(name), name)
    assert not shows(row(name), "Australia/Lord_Howe")


def test_the_likely_name_is_tried_first() -> None:
    assert zone_shown(row("Europe/Berlin"), "Europe/Berlin") == "Europe/Berlin"


def test_a_zone_of_no_known_rules_has_no_name() -> None:
    strange = row("UTC")
    strange[7] += timedelta(minutes=7)
    assert zone_shown(strange) is None
    assert not shows(strange, "Europe/Nowhere")

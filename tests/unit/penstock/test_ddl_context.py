"""The session of a DDL survives JSON, and says what its CURRENT_TIMESTAMP was."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ddl import Catalog, plan_ddl
from penstock.errors import Malformed
from penstock.schema.ddl_context import (
    ROUNDS,
    DdlContext,
    modes_of,
    offset_text,
    shown_sql,
    shows,
    zone_named,
    zone_shown,
)
from penstock.schema.model import DdlJob
from penstock.schema.tidb_json import job_from_json, job_to_json
from tests.unit.penstock.ddl_session import DdlSession

EVENT_US = 1_700_000_000_123_456
"""2023-11-14 22:13:20.123456 in UTC."""

texts = st.text(max_size=8)
contexts = st.builds(
    DdlContext,
    moment_us=st.none() | st.integers(0, 2**52),
    time_zone=st.none() | texts,
    offset_s=st.integers(-50_400, 50_400),
    sql_mode=st.none() | st.frozensets(texts, max_size=3),
    variables=st.dictionaries(texts, texts, max_size=3).map(lambda d: tuple(sorted(d.items()))),
)


@given(contexts)
def test_a_context_is_the_same_after_json(context: DdlContext) -> None:
    job = DdlJob(id=1, type=5, schema_id=1, schema_name="d", query="x", schema_version=1)
    written = json.loads(json.dumps(job_to_json(replace(job, context=context))))
    assert job_from_json(written).context == context


def test_a_job_without_a_context_has_the_same_json_as_ever() -> None:
    job = DdlJob(id=1, type=5, schema_id=1, schema_name="d", query="x", schema_version=1)
    assert "context" not in job_to_json(job)
    assert job_from_json(job_to_json(job)).context is None


def test_a_context_of_another_shape_is_malformed() -> None:
    job = DdlJob(id=1, type=5, schema_id=1, schema_name="d", query="x", schema_version=1)
    with pytest.raises(Malformed):
        job_from_json(job_to_json(job) | {"context": {"moment_us": "soon"}})


@pytest.mark.parametrize(
    ("location", "zone"),
    [
        ({"name": "Asia/Shanghai", "offset": 0}, "Asia/Shanghai"),
        ({"name": "UTC", "offset": 0}, "+00:00"),
        ({"name": "", "offset": 28_800}, "+08:00"),
        ({"name": "", "offset": -12_600}, "-03:30"),
        ({"name": "Local", "offset": 0}, None),
        (None, None),
    ],
)
def test_of_a_tidbs_job_that_rewrites_rows_mode_and_zone_are_read(
    location: object, zone: str | None
) -> None:
    job = DdlJob(id=1, type=12, schema_id=1, schema_name="d", query="x", schema_version=1)
    said = {"sql_mode": 1 << 19 | 1 << 22, "location": location}
    context = job_from_json(job_to_json(job) | {"reorg_meta": said}).context
    modes = {"NO_AUTO_VALUE_ON_ZERO", "STRICT_ALL_TABLES", ROUNDS}
    assert context == DdlContext(time_zone=zone, sql_mode=frozenset(modes))
    assert job_from_json(job_to_json(job) | {"reorg_meta": None}).context is None


def test_a_zone_is_an_offset_or_a_name() -> None:
    assert offset_text(-12_600) == "-03:30"
    zone = zone_named("-03:30")
    assert zone is not None
    offset = zone.utcoffset(None)
    assert offset is not None
    assert offset.total_seconds() == -12_600
    assert zone_named("Europe/Berlin") is not None
    assert zone_named("Europe/Nowhere") is None
    assert zone_named("SYSTEM") is None


def test_modes_are_named_by_their_bits() -> None:
    assert modes_of(0) == frozenset()
    assert modes_of(1 << 2 | 1 << 9 | 1 << 31) == {
        "ANSI_QUOTES", "ORACLE", "PAD_CHAR_TO_FULL_LENGTH",
    }  # fmt: skip


def _filled(context: DdlContext | None) -> list[str | None]:
    session = DdlSession("CREATE TABLE t (id INT PRIMARY KEY)")
    catalog: Catalog = session.catalog
    sql = (
        "ALTER TABLE t ADD a DATETIME NOT NULL DEFAULT NOW(), ADD b TIMESTAMP NULL DEFAULT NOW(),"
        " ADD c DATETIME(3) DEFAULT NOW(3)"
    )
    (job,) = plan_ddl(sql, "d", catalog, lambda: 99, context)
    assert job.context == context
    catalog.apply(replace(job, finished_ts=1_600_000_000_000 << 18))
    return [column.origin_default for column in session.table().columns[1:]]


def test_older_rows_read_as_the_time_of_the_event_in_its_sessions_zone() -> None:
    context = DdlContext(moment_us=EVENT_US, time_zone="+08:00", offset_s=28_800)
    assert _filled(context) == [
        "2023-11-15 06:13:20", "2023-11-14 22:13:20", "2023-11-15 06:13:20.123",
    ]  # fmt: skip


def test_without_a_context_they_read_as_the_time_of_the_job_in_utc() -> None:
    utc = ["2020-09-13 12:26:40", "2020-09-13 12:26:40", "2020-09-13 12:26:40.000"]
    assert _filled(None) == utc


MOMENTS = [int(text) for text in re.findall(r"\((\d+)\)", shown_sql())]
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

"""What a Pump has set aside goes by age, and nothing else does."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pump.replication.replication import purge_displaced, set_aside


def test_what_was_set_aside_goes_once_it_is_older_than_binlogs_are_kept(tmp_path: Path) -> None:
    for name in ("index", "log"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 10)
    set_aside(tmp_path)
    (tmp_path / "log").mkdir()
    brought = tmp_path / "displaced" / "brought"
    brought.mkdir()
    now = datetime.now(UTC)
    assert purge_displaced(tmp_path, 7.0, now + timedelta(days=6.9)) == 0
    assert purge_displaced(tmp_path, 7.0, now + timedelta(days=7.1)) == 20
    assert list((tmp_path / "displaced").iterdir()) == [brought]
    assert (tmp_path / "log").is_dir()


def test_a_pump_that_set_nothing_aside_has_nothing_to_delete(tmp_path: Path) -> None:
    assert purge_displaced(tmp_path, 7.0) == 0

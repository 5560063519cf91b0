"""A password in a file is read for each connection, so that it can be replaced."""

from pathlib import Path
from typing import Any

import pymysql
import pytest

from drainer.settings.targets import MysqlTarget
from drainer.sinks.mysql.session import connect_options
from penstock.errors import NeedsOperator
from penstock.security.databases import PasswordFile
from pumpclient.mysql.source.config import ServerConfig
from tests.kit.sink_target import sink_target


def test_a_replaced_password_is_used_and_the_last_good_one_while_there_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "password"
    path.write_text("first\nnote to self\n")
    file = PasswordFile(str(path))
    assert file.password() == "first"
    path.write_text("second")
    assert file.password() == "second"
    path.unlink()
    assert file.password() == "second"
    assert "the password of before is used: cannot read the password-file" in caplog.text
    path.write_text("")
    assert file.password() == "second"
    assert "is empty" in caplog.text
    assert not any(word in caplog.text + repr(file) for word in ("first", "second\n", "'second"))


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_a_file_without_a_password_is_refused_with_its_name(
    content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(NeedsOperator, match=f"password-file {path}"):
        PasswordFile(str(path))


def test_downstream_and_source_connect_with_the_password_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "password"
    path.write_text("first\n")
    target = sink_target(MysqlTarget, f"mysql://u@h/?password-file={path}")
    target.current_password()
    address = ServerConfig(password_file=str(path)).address()
    path.write_text("second\n")
    assert connect_options(target)["password"] == "second"
    given: list[Any] = []
    monkeypatch.setattr(pymysql, "connect", lambda **options: given.append(options["password"]))
    address.connect()
    assert given == ["second"]

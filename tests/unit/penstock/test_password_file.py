"""A password in a file is read for each connection, so that it can be replaced."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.settings.targets import MysqlTarget
from drainer.sinks.mysql.session import connect_options
from penstock.errors import NeedsOperator
from penstock.security.databases import PasswordFile
from penstock.security.encrypted_passwords import decrypted, encrypted
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

    def connect(**options: Any) -> SimpleNamespace:
        given.append(options["password"])
        return SimpleNamespace()

    monkeypatch.setattr(pymysql, "connect", connect)
    address.connect()
    assert given == ["second"]


KEYS = st.sampled_from(["", "00" * 16, "ab" * 24, "17" * 32])


@given(st.text(max_size=100), KEYS)
def test_what_is_encrypted_is_decrypted_under_the_same_key(password: str, key: str) -> None:
    env = {"BINLOG_SECRET_KEY": key}
    hidden = encrypted(password, env)
    assert decrypted(hidden, env) == password
    assert hidden != encrypted(password, env)


def test_the_form_is_aes_in_cfb_mode_as_other_programs_have_it() -> None:
    # openssl enc -aes-128-cfb -K 2b7e…3c -iv 0001…0f, the example of NIST SP 800-38A, F.3.13.
    key = "2b7e151628aed2a6abf7158809cf4f3c"
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    hidden = bytes.fromhex("3b3fd92eb72dad20333449f8e83cfb4ac8a64537a0b3a93fcde3cdad9f1ce58b")
    from penstock.security import encrypted_passwords

    cfb = encrypted_passwords._cfb
    first = bytes(range(16))
    assert cfb(bytes.fromhex(key), first, plain, is_hidden=False) == hidden
    assert cfb(bytes.fromhex(key), first, hidden, is_hidden=True) == plain


@pytest.mark.parametrize("text", ["x", "not base64!", "AAAA", "A" * 40])
def test_what_is_none_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(NeedsOperator, match="is not one") as refused:
        decrypted(text, {})
    assert text not in str(refused.value)

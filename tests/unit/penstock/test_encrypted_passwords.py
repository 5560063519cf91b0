"""Passwords as TiDB-Binlog hides them: what one program writes the other one reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import NeedsOperator
from penstock.security.encrypted_passwords import decrypted, encrypted

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

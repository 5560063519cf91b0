import logging
import os
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from penstock.errors import NeedsOperator
from penstock.security.tls import Security, SecurityConfig, Tls
from tests.kit.servers.authority import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ssl_ca": "ca"}, "ssl-cert is ''.*with ssl-ca it must be set"),
        ({"ssl_ca": "ca", "ssl_cert": "c"}, "ssl-key is ''.*must be set"),
        ({"ssl_cert": "c", "ssl_key": "k"}, "ssl-cert is 'c'.*needs ssl-ca"),
        ({"cert_allowed_cn": ("node",)}, "cert-allowed-cn is .*needs ssl-ca"),
    ],
)
def test_settings_that_only_look_safe_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(NeedsOperator, match=message):
        SecurityConfig(**settings)  # type: ignore[arg-type]


def test_without_an_authority_there_is_no_tls() -> None:
    security = Security(SecurityConfig())
    assert security.tls is None
    assert not security.interceptors()


def _missing(pair: Pair) -> None:
    pair.cert.unlink()


def _of_another(pair: Pair) -> None:
    shutil.copy(Authority(pair.key.parent, "other").issue("other").key, pair.key)


def _no_pem(pair: Pair) -> None:
    pair.cert.write_text("not a certificate")


def _no_authority(pair: Pair) -> None:
    pair.ca.write_text("not a certificate")


def _encrypted(pair: Pair) -> None:
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )


_FAULTS = [
    (_missing, r"cannot read \S+node.crt: No such file.*check ssl-ca"),
    (_of_another, r"node.crt and \S+node.key are not a certificate and its key: key values mism"),
    (_no_pem, r"node.crt and \S+node.key are not a certificate and its key"),
    (_no_authority, r"ca.pem is no PEM file of certificates"),
    (_encrypted, r"node.key is encrypted .*without a passphrase"),
]


@pytest.mark.parametrize(("damage", "message"), _FAULTS)
def test_files_that_cannot_be_used_are_named(
    authority: Authority, damage: object, message: str
) -> None:
    pair = authority.issue("node")
    assert callable(damage)
    damage(pair)
    with pytest.raises(NeedsOperator, match=message):
        pair.tls.check()


def test_a_certificate_without_its_key_is_refused(authority: Authority) -> None:
    with pytest.raises(NeedsOperator, match="give both of them"):
        Tls(ca=authority.file, cert=authority.file)


@pytest.mark.parametrize(("damage", "message"), _FAULTS)
def test_what_breaks_later_is_reported_once_and_the_old_certificate_serves_on(
    authority: Authority, caplog: pytest.LogCaptureFixture, damage: object, message: str
) -> None:
    pair = authority.issue("node")
    tls = pair.tls
    tls.check()
    assert callable(damage)
    damage(pair)
    for _ in range(3):
        tls.channel_credentials()
    (line,) = caplog.messages
    assert "the old ones serve on" in line
    with caplog.at_level(logging.INFO):
        authority_again = Authority(pair.ca.parent)
        authority_again.issue("node")
        tls.channel_credentials()
        tls.channel_credentials()
    assert caplog.messages[1].startswith("new connections use the certificates read again")
    assert len(caplog.messages) == 2


def test_files_replaced_by_renaming_are_noticed(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair = authority.issue("node")
    tls = pair.tls
    tls.check()
    fresh = authority.issue("node", file="fresh")
    os.replace(fresh.key, pair.key)
    tls.check()
    os.replace(fresh.cert, pair.cert)
    with caplog.at_level(logging.INFO):
        tls.check()
    assert "not usable" in caplog.messages[0]
    assert "read again" in caplog.messages[1]


def test_a_key_is_in_no_text(authority: Authority) -> None:
    pair = authority.issue("node")
    tls = pair.tls
    shown = f"{tls!r} {tls._read()!r}"
    assert str(pair.key) in shown
    assert "PRIVATE" not in shown


def test_an_etcd_and_a_pd_have_files_of_their_own_or_those_of_the_node(
    authority: Authority,
) -> None:
    own, other = authority.issue("node"), authority.issue("other")
    files = {"ssl_ca": str(own.ca), "ssl_cert": str(own.cert), "ssl_key": str(own.key)}
    theirs = {"etcd_ssl_cert": str(other.cert), "etcd_ssl_key": str(other.key)}
    security = Security(SecurityConfig(**files, **theirs))  # type: ignore[arg-type]
    assert security.etcd_tls.files == (own.ca, other.cert, other.key)
    assert security.pd_tls.files == (own.ca, own.cert, own.key)
    assert Security(SecurityConfig(pd_ssl_ca=str(own.ca))).pd_tls.files == (own.ca, None, None)


def test_a_certificate_for_etcd_without_its_key_is_refused() -> None:
    with pytest.raises(NeedsOperator, match=r"etcd-ssl-key is ''"):
        SecurityConfig(etcd_ssl_cert="c")

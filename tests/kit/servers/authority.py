"""A certificate authority for tests: certificates of any name, valid or expired, in PEM files."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.security.tls import SecurityConfig
from pumpclient import Tls

_LONG_AGO = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in files."""

    ca: Path
    cert: Path
    key: Path

    @property
    def tls(self) -> Tls:
        return Tls(ca=self.ca, cert=self.cert, key=self.key)

    def config(self, *names: str, roles: tuple[str, ...] = ()) -> SecurityConfig:
        """Return the settings of a node that admits callers of these names, without any: all."""
        ca, cert, key = map(str, (self.ca, self.cert, self.key))
        return SecurityConfig(
            ssl_ca=ca, ssl_cert=cert, ssl_key=key, cert_allowed_cn=names, cert_roles=roles
        )

    @property
    def settings(self) -> dict[str, str]:
        """A node's settings with this certificate, for a `NodeProcess`."""
        parts = {"ca": self.ca, "cert": self.cert, "key": self.key}
        return {f"security_ssl_{name}": str(path) for name, path in parts.items()}

    @property
    def flags(self) -> tuple[str, ...]:
        """The same for `penstock ctl`."""
        return (
            *("--ssl-ca", str(self.ca)),
            *("--ssl-cert", str(self.cert)),
            *("--ssl-key", str(self.key)),
        )


class Authority:
    """Signs certificates for 127.0.0.1; everything it makes is in its folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.file = folder / f"{name}.pem"
        basic = x509.BasicConstraints(ca=True, path_length=None)
        builder = _builder(self._name, self._name, self._key).add_extension(basic, critical=True)
        self.file.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def issue(self, common_name: str, *, days: int = 30, file: str = "") -> Pair:
        """Make a certificate that is valid for so many days from now; below zero: expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        local = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = _builder(_name(common_name), self._name, key, days)
        builder = builder.add_extension(x509.SubjectAlternativeName(local), critical=False)
        file = file or common_name
        pair = Pair(self.file, self._folder / f"{file}.crt", self._folder / f"{file}.key")
        pair.cert.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 30
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LONG_AGO)
        .not_valid_after(now + datetime.timedelta(days=days))
    )

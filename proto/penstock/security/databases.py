"""Connections to a MySQL or MariaDB: TLS, and a password that is read from a file.

ssl-ca                 the server's certificate must be signed by it; without: encrypted only
ssl-cert, ssl-key      shown to a server that asks for a certificate
ssl-verify = "full"    the certificate must also hold the host name that was connected to
ssl-verify = "ca"      its CA is enough: the certificate that MySQL makes at its first start holds
                       no host name, and lacks extensions that newer Pythons ask of a CA

A password file's first line is read again for each connection, so that it can be replaced.
"""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator

FULL, CA = "full", "ca"
MISMATCH = "hostname mismatch|ip address mismatch|doesn't match"
"""Prefixes of Python's errors for a certificate of another name."""
MISMATCH_HINT = (
    'connect by a name that the certificate holds, or set ssl-verify = "ca": the certificates that'
    " MySQL makes for itself hold none, and their CA is checked all the same"
)
UNREACHED = frozenset({2002, 2003, 2005, 2006, 2013})
"""PyMySQL's errors, while it connects, for no server, or one that does not answer."""
AWAY_HINT = "start the server, or correct its host and port"
CERTIFICATE_HINT = "TLS failed: check the certificates, their names and dates"


def trusting(ca: Path | None) -> ssl.SSLContext:
    """Return a client's context that trusts `ca` and the certificates it signed.

    None stands for the system's authorities. From 3.13 on Python refuses certificates without the
    key identifiers of RFC 5280. gRPC, etcd and SQL servers accept them, and many private CAs issue
    no others. Raises `OSError`.
    """
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


@dataclass(frozen=True, slots=True)
class SqlTls:
    """PEM files and the checks; `NeedsOperator` for an unknown `verify`."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: str = FULL

    def __post_init__(self) -> None:
        if self.verify not in (FULL, CA):
            raise NeedsOperator(
                f"ssl-verify is {self.verify!r}",
                '"full" checks CA and host name, "ca" the CA only',
                Code.SETTING_VALUE,
            )

    def context(self) -> ssl.SSLContext:
        try:
            context = trusting(self.ca)
            if self.ca is None or self.verify == CA:
                context.check_hostname = False
            if self.ca is None:
                context.verify_mode = ssl.CERT_NONE
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise NeedsOperator(
                f"TLS towards the server: {error}",
                "check the paths of ssl-ca, ssl-cert and ssl-key",
                Code.TLS_FILES,
            ) from error
        return context


log = logging.getLogger(__name__)


class PasswordFile:
    """A file with a password; its content is in no log."""

    def __init__(self, path: str) -> None:
        """Read the file; raise `NeedsOperator` if it is unreadable or has no first line."""
        self._path = Path(path)
        self._good = self._read()

    def password(self) -> str:
        """Return the file's current content; while it is unusable, the last valid content."""
        try:
            found = self._read()
        except NeedsOperator as error:
            log.error("the password of before is used: %s", error)
            return self._good
        if found != self._good:
            log.info("connections use the password read again from %s", self._path)
            self._good = found
        return found

    def _read(self) -> str:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise NeedsOperator(
                f"cannot read the password-file {self._path}: {reason}",
                "check path and rights",
                Code.PASSWORD_UNREADABLE,
            ) from error
        if not lines or not lines[0]:
            raise NeedsOperator(
                f"the password-file {self._path} is empty",
                "write the password into it",
                Code.PASSWORD_UNREADABLE,
            )
        return lines[0]

    def __repr__(self) -> str:
        return f"PasswordFile({self._path})"

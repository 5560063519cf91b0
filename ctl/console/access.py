"""Controls who may act at a console: users who have shown its token, for a while, from its page.

Without a token a console is read-only. With a token, a form accepts it and starts a session: a
random name in a cookie that scripts cannot read and other sites cannot send (HttpOnly,
SameSite=Strict), and a second random name that every form must contain (`csrf`). Wrong tokens are
answered late, which makes guessing slow; comparisons take the same time for each token.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.codes import Code
from penstock.errors import NeedsOperator

TOKEN_VARIABLE: Final = "PENSTOCK_CONSOLE_TOKEN"
TOKEN_CHARS_MIN: Final = 16
COOKIE: Final = "penstock_console"
SESSION_S: Final = 12 * 3600.0
_SESSIONS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Login:
    """One login; `csrf` is in every form of its pages."""

    name: str
    csrf: str
    until_s: float


class Access:
    """The token and its sessions; without a token no session exists."""

    def __init__(self, token: str, clock: Callable[[], float]) -> None:
        """An empty `token` means none; `clock` must be monotonic."""
        self._token = token.encode()
        self._clock = clock
        self._sessions: dict[str, Login] = {}

    @property
    def has_token(self) -> bool:
        return bool(self._token)

    def log_in(self, token: str) -> Login | None:
        """Start a session; return None if the token is not the console's."""
        shown = token.strip().encode("utf-8", "replace")
        if not self._token or not hmac.compare_digest(shown, self._token):
            return None
        now_s = self._clock()
        live = [each for each in self._sessions.values() if each.until_s > now_s]
        made = Login(secrets.token_urlsafe(32), secrets.token_urlsafe(32), now_s + SESSION_S)
        self._sessions = {each.name: each for each in [*live[1 - _SESSIONS_MAX :], made]}
        return made

    def session(self, name: str) -> Login | None:
        """Return the session of that name, or None once it has expired."""
        found = self._sessions.get(name)
        return found if found is not None and found.until_s > self._clock() else None

    def log_out(self, session: Login) -> None:
        self._sessions.pop(session.name, None)


def is_of(session: Login, csrf: str) -> bool:
    return hmac.compare_digest(csrf.encode("utf-8", "replace"), session.csrf.encode())


def read_token(file: Path | None, variable: str) -> str:
    """Return the token from a file or else from a variable, empty if neither is set.

    Raises `NeedsOperator` for a token that is empty or could be guessed.
    """
    if file is None and not variable:
        return ""
    try:
        token = (file.read_text(encoding="utf-8") if file else variable).strip()
    except UnicodeDecodeError as error:
        raise NeedsOperator(
            f"{file} is no text", "write one line into it", Code.SETTING_VALUE
        ) from error
    if len(token) < TOKEN_CHARS_MIN:
        where = str(file) if file else TOKEN_VARIABLE
        raise NeedsOperator(
            f"the token in {where} has {len(token)} characters, at least {TOKEN_CHARS_MIN} are"
            " needed",
            "make one: openssl rand -hex 24",
            Code.SETTING_VALUE,
        )
    return token


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback, without a lookup."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

"""Controls who may act at a console, and the verbs of penstock ctl that it offers.

Without a token a console is read-only. With a token, a form accepts it and starts a session: a
random name in a cookie that scripts cannot read and other sites cannot send (HttpOnly,
SameSite=Strict), and a second random name that every form must contain (`csrf`). Wrong tokens are
answered late, which makes guessing slow; comparisons take the same time for each token.

    pause-pump, pause-drainer    the process ends and keeps its place, until it is started again
    offline-pump                 it hands over all its data, then leaves
    hand-over                    a standby writes in the Drainer's place

Decisions about a DDL are those that its node offers, and say what they skip (`children`). None of
the verbs above can lose a row: a stopped node comes back with all its data, and a Pump goes
offline only once every Drainer has all of it. Therefore `offline-drainer` is not offered, because
Pumps then drop data that only that Drainer needs. Nor are `update-…`, `lost-pump`, and
`trigger-gc`, which with `gc-force-after-days` purges data that a late Drainer still needs.
"""

from __future__ import annotations

import argparse
import hmac
import ipaddress
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from penstock.cluster.node_registry import NodeKind
from penstock.codes import Code
from penstock.ctl.console.concerns import ctl_command
from penstock.ctl.console.views import ClusterState
from penstock.ctl.nodes import Cluster, known_node, tls_of
from penstock.ctl.steering import begin_ending, begin_hand_over
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
        self.sessions: dict[str, Login] = {}

    @property
    def has_token(self) -> bool:
        return bool(self._token)

    def log_in(self, token: str) -> Login | None:
        """Start a session; return None if the token is not the console's."""
        shown = token.strip().encode("utf-8", "replace")
        if not self._token or not hmac.compare_digest(shown, self._token):
            return None
        now_s = self._clock()
        live = [each for each in self.sessions.values() if each.until_s > now_s]
        made = Login(secrets.token_urlsafe(32), secrets.token_urlsafe(32), now_s + SESSION_S)
        self.sessions = {each.name: each for each in [*live[1 - _SESSIONS_MAX :], made]}
        return made

    def session(self, name: str) -> Login | None:
        """Return the session of that name, or None once it has expired."""
        found = self.sessions.get(name)
        return found if found is not None and found.until_s > self._clock() else None


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


PAUSE_PUMP, OFFLINE_PUMP = "pause-pump", "offline-pump"
PAUSE_DRAINER, HAND_OVER = "pause-drainer", "hand-over"

KINDS: Final[Mapping[str, NodeKind]] = {
    PAUSE_PUMP: NodeKind.PUMP,
    OFFLINE_PUMP: NodeKind.PUMP,
    PAUSE_DRAINER: NodeKind.DRAINER,
    HAND_OVER: NodeKind.DRAINER,
}

_BY_HAND: Final = (
    "That is done by hand: a supervisor leaves a node that stopped as asked, and a console cannot"
    " start one."
)


class Offer(NamedTuple):
    """A verb that is possible for a node now, and its consequences, in sentences."""

    verb: str
    node_id: str
    consequences: tuple[str, ...]

    def command(self, flags: str) -> str:
        return ctl_command(self.verb, self.node_id, flags=flags)


_FLAGS: Final = (
    "etcd_urls", "etcd_ssl_ca", "etcd_ssl_cert", "etcd_ssl_key", "ssl_ca", "ssl_cert", "ssl_key",
)  # fmt: skip


def flags_of(arguments: argparse.Namespace) -> str:
    """Return the options with which a command finds this console's cluster, in any folder."""
    found = {name: getattr(arguments, name, None) for name in _FLAGS}
    shown = {n: v.absolute() if isinstance(v, Path) else v for n, v in found.items() if v}
    return shlex.join(f"--{name.replace('_', '-')}={value}" for name, value in shown.items())


def offers(state: ClusterState) -> Iterator[Offer]:
    online = [pump for pump in state.pumps if pump.word == "online"]
    others = _where_writers_go(len(online) - 1)
    for pump in online:
        pausing = (
            f"The process of Pump {pump.name} ends, with all that it holds on its disk.",
            others,
            "Every Drainer waits for it: nothing goes downstream until it is started again."
            f" {_BY_HAND}",
        )
        yield Offer(PAUSE_PUMP, pump.name, pausing)
        leaving = (
            "It takes no new transactions, and stays until every Drainer has all that it holds.",
            "Then it leaves the cluster, and its process ends. Started again, it joins as before.",
            others,
            "A Drainer that does not run holds it up; nothing is given up for that.",
        )
        yield Offer(OFFLINE_PUMP, pump.name, leaving)
    for drainer in state.drainers:
        if drainer.word != "online":
            continue
        name, standbys = drainer.name, " or ".join(drainer.standbys)
        next_ = f"The downstream stands still until it is started again. {_BY_HAND}"
        pausing = (
            f"Drainer {name} commits the current batch, and its process ends.",
            f"{standbys} takes its place." if standbys else next_,
            "Pumps keep all that it has not got yet; their disks fill meanwhile.",
        )
        yield Offer(PAUSE_DRAINER, name, pausing)
        if standbys:
            changing = (
                f"Drainer {name} commits the current batch, and is on standby.",
                f"{standbys} writes in its place, from the same checkpoint.",
            )
            yield Offer(HAND_OVER, name, changing)


def begin(offer: Offer, arguments: argparse.Namespace) -> str:
    """Act as penstock ctl does; return what was started, or raise a `PenstockError`."""
    kind, tls = KINDS[offer.verb], tls_of(arguments)
    with Cluster(arguments) as registry:
        status = known_node(registry, kind, offer.node_id)
    if offer.verb == HAND_OVER:
        return f"makes room for {' or '.join(begin_hand_over(status, tls))}"
    verb = offer.verb.partition("-")[0]
    begin_ending(kind, status, verb, tls)
    return "pausing" if verb == "pause" else "closing"


def find(state: ClusterState, verb: str, node_id: str) -> Offer:
    """Return a currently valid offer; raise `NeedsOperator` if there is none."""
    for each in offers(state):
        if (each.verb, each.node_id) == (verb, node_id):
            return each
    raise NeedsOperator(
        f"{verb} cannot be done to {node_id} now",
        "look at the page again: states change",
        Code.NODE_STATE,
    )


def _where_writers_go(others: int) -> str:
    if not others:
        return "No other Pump is online: writers get an error until one is."
    return f"Writers use the other {others} online." if others > 1 else "Writers use the other one."

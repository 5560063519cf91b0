"""Preflight: everything that both sides of a pipeline lack, found before any part starts.

    upstream    `checks_of` of `penstock source check`
    downstream  SQL        the connection, the version, read_only, the privileges of a Drainer
                Kafka      the brokers, and the right to create topics
                a folder   whether this account can write there

Both sides are asked at the same time, so that one run reports all problems. A side that does not
answer is a failed check, after which another start may succeed.
"""

from __future__ import annotations

import getpass
import logging
import re
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any

from drainer.settings.targets import KafkaTarget, MysqlTarget, SqliteTarget, Target
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.node.checks import Check, account_text, granting, lacking, privileges
from pumpclient.mysql.protocol.server import ServerAddress

log = logging.getLogger(__name__)

_ROWS = ("SELECT", "INSERT", "UPDATE", "DELETE")
_WANTED = {name: () for name in (*_ROWS, "CREATE", "ALTER", "DROP", "INDEX", "REFERENCES")}
_OWN = {name: () for name in (*_ROWS, "CREATE")}
"""What the schema of the checkpoint needs."""
_VERSION_MIN = {True: (10, 4), False: (5, 7)}
"""The oldest MariaDB, and the oldest MySQL or TiDB."""
_PAST_READ_ONLY = {"SUPER": ("READ_ONLY ADMIN", "READ ONLY ADMIN", "CONNECTION_ADMIN")}
_ANSWER_S = 5.0
Look = Callable[[], Sequence[Check]]


def sides_of(
    looks: Mapping[str, Look], say: Callable[[str], None] = lambda line: None
) -> dict[str, Sequence[Check]]:
    """Return the checks of each side, by its name; a side that is away is a failed check.

    `say` gets a line every few seconds, with the sides that have not answered.
    """
    with ThreadPoolExecutor(len(looks)) as threads:
        asked = {name: threads.submit(_answered, look) for name, look in looks.items()}
        while open_ := wait(asked.values(), _ANSWER_S).not_done:
            say(f"waits for {' and '.join(name for name in asked if asked[name] in open_)}")
        return {name: each.result() for name, each in asked.items()}


def _answered(look: Look) -> Sequence[Check]:
    try:
        return look()
    except NeedsOperator as error:
        return [Check("connection", False, error.problem, error.hint)]
    except Retryable as error:
        return [Away("connection", False, str(error), "start it, or correct the URL")]


class Away(Check):
    """A failed check that may pass at another try."""


def report(sides: Mapping[str, Iterable[Check]]) -> tuple[str, PenstockError | None]:
    """Return the list of all that is not met, and the error to end with if some of it must be."""
    lines, failed = [], []
    for name, checks in sides.items():
        open_ = [each for each in checks if not each.passed]
        failed += [each for each in open_ if each.required]
        if open_:
            lines += [f"{name}:", *("  " + str(each).replace("\n", "\n  ") for each in open_)]
    text = "".join(f"{line}\n" for line in lines)
    if not failed:
        return text, None
    if all(isinstance(each, Away) for each in failed):
        return text, Retryable("a side of the pipeline does not answer", Code.SERVER_AWAY)
    problem = f"{len(failed)} requirements are not met, and nothing was started"
    hint = "correct what is marked FAILED above, and run the same command again"
    return text, NeedsOperator(problem, hint, Code.SERVER_SETTING)


def check_apart(upstream: ServerAddress, target: MysqlTarget) -> None:
    """Raise `NeedsOperator` if both addresses are the same server's, by any name of its host."""

    def of(host: str, port: int) -> set[object]:
        try:
            return {address for *_, address in socket.getaddrinfo(host, port)}
        except OSError:
            return set()  # The checks of this side report it.

    if of(upstream.host, upstream.port) & of(target.host, target.port):
        raise NeedsOperator(
            f"{upstream} is both the upstream and the downstream",
            "name another server with --to",
            Code.SETTING_VALUE,
        )


def downstream_checks(target: Target) -> Sequence[Check]:
    """Return the checks of a downstream; raise for one that is away or refuses the account."""
    if isinstance(target, MysqlTarget):
        return _of_server(target)
    if isinstance(target, KafkaTarget):
        return _of_brokers(target)
    return _of_folder(target)


# --- SQL ---------------------------------------------------------------------------------------


def _of_server(target: MysqlTarget) -> list[Check]:
    from drainer.sinks.mysql.session import MysqlSession, is_mariadb, many, one, version_of

    closing_ = threading.Event()
    session = MysqlSession(target, retry_s_max=_ANSWER_S, closing=closing_)

    def attempt(connection: Any, retried: bool) -> list[Check]:
        version = version_of(connection)
        account = account_text(str(one(connection, "SELECT CURRENT_USER()")[0]))
        grants = [str(line) for (line,) in many(connection, "SHOW GRANTS")]
        read_only = one(connection, "SELECT @@global.read_only")[0]
        return judge_server(
            version, is_mariadb(version), grants, account, target.checkpoint_schema,
            is_read_only=str(read_only) not in ("0", "OFF"),
        )  # fmt: skip

    try:
        return session.retrying(attempt)
    finally:
        closing_.set()
        session.close()


def judge_server(
    version: str,
    is_mariadb: bool,
    grants: Sequence[str],
    account: str,
    schema: str,
    *,
    is_read_only: bool,
) -> list[Check]:
    """Return the checks of an SQL downstream whose checkpoint is in `schema`."""
    wanted = _VERSION_MIN[is_mariadb]
    number = re.match(r"(\d+)\.(\d+)", version)
    is_old = number is not None and (int(number[1]), int(number[2])) < wanted
    oldest = ".".join(map(str, wanted))
    checks = [Check("version", not is_old, version, f"use {oldest} or later" if is_old else "")]
    found = privileges(grants)
    everywhere = found.get("*.*", set())
    if is_read_only and lacking(_PAST_READ_ONLY, everywhere):
        checks.append(Check(
            "read_only", False, "ON", "or name the server that takes writes",
            fixes=("SET GLOBAL read_only = OFF;",),
        ))  # fmt: skip
    if any(" ON " not in line for line in grants):
        return [*checks, Check("privileges", True, f"{account} has roles")]  # Not listed in full.
    own = f"{schema}.*".lower()
    of_rows = set().union(*(names for scope, names in found.items() if scope != own))
    missing = lacking(_WANTED, of_rows)
    fixes = granting(missing, "*.*", account) if missing else ()
    granted = everywhere | found.get(own, set()) | set(missing)
    if lacks := lacking(_OWN, granted):
        fixes += granting(lacks, f"`{schema}`.*", account)
    if not fixes:
        return [*checks, Check("privileges", True, "enough")]
    names = f"{account} has no {', '.join(missing or lacks)}"
    hint = "run it with an account that may grant this"
    return [*checks, Check("privileges", False, names, hint, fixes=fixes)]


# --- Kafka -------------------------------------------------------------------------------------


def _of_brokers(target: KafkaTarget) -> list[Check]:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    from drainer.sinks.kafka.producing import client_options, refusal

    faults: list[Any] = []
    options = {**client_options(target), "error_cb": faults.append, "logger": log, "log_level": 0}
    admin = AdminClient(options)
    try:
        there = admin.list_topics(timeout=_ANSWER_S).topics
    except KafkaException as error:
        for fault in (*faults, error.args[0]):
            if (found := refusal(fault)) is not None:
                raise found from error
        raise Retryable(
            f"no broker answers at {target.bootstrap_servers}", Code.SERVER_AWAY
        ) from error
    wanted = (target.checkpoint_topic, f"{target.prefix}.ddl")
    missing = [name for name in wanted if name not in there]
    checks = [Check("brokers", True, target.bootstrap_servers)]
    if not target.create_topics:
        if wanted[0] in missing:
            checks.append(Check(
                "topics", False, f"{wanted[0]} does not exist, and create-topics is false",
                "create it, with one partition and cleanup.policy=compact",
            ))  # fmt: skip
        return checks
    asked = [NewTopic(name, num_partitions=1, replication_factor=-1) for name in missing]
    if not asked:
        return checks
    tried = admin.create_topics(asked, validate_only=True, request_timeout=_ANSWER_S)
    refused = {name: fault for name, future in tried.items() if (fault := future.exception())}
    if refused:
        name, fault = next(iter(refused.items()))
        why = refusal(fault.args[0], name)
        said, hint = (why.problem, why.hint) if why else (str(fault), "see the broker's log")
        checks.append(Check("topics", False, said, hint, fixes=acls(target)))
    return checks


def acls(target: KafkaTarget) -> tuple[str, ...]:
    """Return the commands that give the account the rights of an output."""
    from drainer.sinks.kafka.checkpoint_topic import GROUP

    who = f"kafka-acls.sh --bootstrap-server {target.bootstrap_servers} --add --allow-principal"
    who += f" User:{target.user or 'ANONYMOUS'}"
    names = "--operation Create --operation Write --operation Read --operation Describe"
    names += " --operation DescribeConfigs"
    prefixed = "--resource-pattern-type prefixed"
    return (
        f"{who} {names} {prefixed} --topic {target.prefix}",
        f"{who} {names} --topic {target.checkpoint_topic}",
        f"{who} --operation Write --operation Describe {prefixed}"
        f" --transactional-id penstock-{target.prefix}",
        f"{who} --operation Read --group {GROUP}",
    )


# --- a folder ----------------------------------------------------------------------------------


def _of_folder(target: Target) -> list[Check]:
    """Return whether a file can be written in the folder, or in the nearest one that exists."""
    if (path := target.local) is None:
        return []
    path = path.absolute()
    folder = path.parent if isinstance(target, SqliteTarget) else path
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with closing(tempfile.TemporaryFile(dir=there)):
            pass
        if isinstance(target, SqliteTarget) and path.exists():
            path.open("r+b").close()
    except OSError as error:
        where = Path(error.filename) if error.filename == str(path) else there
        return [Check(
            "folder", False, f"{where} cannot be written: {error.strerror}",
            "or name another place", fixes=(f"sudo chown -R {getpass.getuser()} {where}",),
        )]  # fmt: skip
    return [Check("folder", True, str(folder))]

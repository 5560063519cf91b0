"""Checks of a server, before it is followed: its settings, privileges, engines and foreign keys.

A load needs more privileges than following does, so a source that has loaded its tables is not
asked for them. An account without SELECT sees no table: then the tables are checked at the next
start, and LOCK TABLES is asked for already, in case that some of them need it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters import FilterConfig, Rules
from penstock.node.checks import Check, account_text, granting, lacking, privileges
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.load.tables import OF_LOCKS, OF_SNAPSHOTS, SYSTEM_SCHEMAS, TABLE_TYPES
from pumpclient.mysql.protocol.server import Connection, ServerAddress, identify, rows
from pumpclient.mysql.source.config import SourceConfig
from pumpclient.mysql.source.ddl.cascades import Cascades
from pumpclient.mysql.source.sync.loading import load_state

log = logging.getLogger(__name__)

KEEP_S_MIN = 3600
_DAY_S = 86400
Wanted = Mapping[str, Sequence[str]]
"""Privileges on *.*, with their other names."""
FOLLOWING: Wanted = {
    "REPLICATION SLAVE": ("REPLICATION REPLICA",),
    "REPLICATION CLIENT": ("BINLOG MONITOR", "SUPER"),
}
LOADING: Wanted = {"RELOAD": ("FLUSH_TABLES",)}
LOCKING: Wanted = {"LOCK TABLES": ()}
_MY_CNF = "write it below [mysqld] in my.cnf, and restart the server"
_KEPT = "write it below [mysqld] in my.cnf, too, or it ends with the next restart"


def checks_of(settings: SourceConfig) -> list[Check]:
    """Return every check of the server, passed or failed; raise for a server that is away."""
    address, loaded = settings.source.address(), load_state(settings)
    loads = settings.mode != "incremental" and not (loaded is not None and loaded.is_complete)
    with address.session() as connection:
        followed = _engines(connection, settings)
        engines = [each for each in followed if each[1] not in OF_SNAPSHOTS]
        is_blind = not _sees_tables(connection)
        locks = is_blind or any(engine in OF_LOCKS for _, engine in engines)
        more = {**(LOADING if loads else {}), **(LOCKING if loads and locks else {})}
        checks = check_server(connection, more)
    if is_blind:
        return [*checks, Check(
            "tables", False, "none is seen without SELECT", "the next start looks at their engines"
            " and foreign keys", required=False,
        )]  # fmt: skip
    if not followed and settings.filter != FilterConfig():
        hint = "if some should, correct the names in filter"
        checks.append(Check("tables", False, "none passes the filters", hint, required=False))
    checks += engine_checks(engines, loads=loads)
    if settings.mode != "full":
        checks += Cascades.of(settings).checks(address)
    return checks


def check_server(connection: Connection, more: Wanted | None = None) -> list[Check]:
    """Return the checks of settings and privileges in a fixed order; `more` are a load's."""
    variables = {
        str(row["variable_name"]).lower(): str(row["value"])
        for row in rows(connection, "SHOW GLOBAL VARIABLES")
    }
    ((account,),) = (row.values() for row in rows(connection, "SELECT CURRENT_USER()"))
    return judge(variables, _grants(connection), account_text(str(account)), more)


def _grants(connection: Connection) -> list[str]:
    return [str(next(iter(row.values()))) for row in rows(connection, "SHOW GRANTS")]


def _sees_tables(connection: Connection) -> bool:
    # Tables may be granted individually; only the filters know which are needed.
    found = privileges(_grants(connection)).values()
    return not lacking({"SELECT": ()}, set().union(*found))


def judge(
    variables: Mapping[str, str],
    grants: Iterable[str],
    account: str = "'user'@'host'",
    more: Wanted | None = None,
) -> list[Check]:
    wanted: list[tuple[str, str, Callable[[str], bool], str, str]] = [
        ("log_bin", "OFF", lambda v: v in ("ON", "1"), "log-bin = mysql-bin", _MY_CNF),
        ("binlog_format", "STATEMENT", lambda v: v == "ROW",
         "SET GLOBAL binlog_format = 'ROW';", f"let open sessions reconnect; {_KEPT}"),
        ("binlog_row_image", "FULL", lambda v: v == "FULL",
         "SET GLOBAL binlog_row_image = 'FULL';", f"let open sessions reconnect; {_KEPT}"),
        ("server_id", "0", lambda v: v != "0",
         "SET GLOBAL server_id = 1;", f"choose a number that no other server has; {_KEPT}"),
        ("binlog_checksum", "NONE", lambda v: v in ("CRC32", "NONE"),
         "SET GLOBAL binlog_checksum = 'CRC32';", _KEPT),
    ]  # fmt: skip
    checks = []
    for name, absent, holds, fix, hint in wanted:
        found = variables.get(name, absent)
        if holds(found.upper()):
            checks.append(Check(name, True, found))
        else:
            checks.append(Check(name, False, found, hint, fixes=(fix,)))
    return [*checks, _privileges(grants, account, more or {}), _kept(variables)]


def _privileges(grants: Iterable[str], account: str, more: Wanted) -> Check:
    found = privileges(grants)
    missing = lacking({**FOLLOWING, **more}, found.get("*.*", set()))
    missing += lacking({"SELECT": ()}, set().union(*found.values()))
    if not missing:
        return Check("privileges", True, "enough")
    names = f"{account} has no {', '.join(missing)}"
    hint = "run it with an account that may grant this"
    return Check("privileges", False, names, hint, fixes=granting(missing, "*.*", account))


def _kept(variables: Mapping[str, str]) -> Check:
    seconds = float(variables.get("binlog_expire_logs_seconds", "0") or 0)
    seconds = seconds or float(variables.get("expire_logs_days", "0") or 0) * _DAY_S
    if seconds == 0 or seconds >= KEEP_S_MIN:
        return Check("binlog kept", True, f"{seconds:g} s" if seconds else "indefinitely")
    return Check(
        "binlog kept", False, f"{seconds:g} s", f"a pause of more than {seconds:g} s loses changes",
        required=False, fixes=(f"SET GLOBAL binlog_expire_logs_seconds = {_DAY_S};",),
    )  # fmt: skip


def _engines(connection: Connection, settings: SourceConfig) -> list[tuple[str, str]]:
    """Return the replicated tables, `schema.table`, with their engines in small letters."""
    rules, online = Rules(settings.filter), settings.online_ddl.rules()
    found = rows(
        connection,
        "SELECT table_schema AS s, table_name AS t, LOWER(engine) AS e FROM"  # noqa: S608
        f" information_schema.tables WHERE table_type IN {TABLE_TYPES} AND table_schema NOT IN"
        f" {SYSTEM_SCHEMAS} ORDER BY 1, 2",
    )
    return [
        (f"{row['s']}.{row['t']}", str(row["e"]))
        for row in found
        if rules.is_replicated(row["s"], row["t"])
        and not (online is not None and online.is_copy(row["t"]))
    ]


def engine_checks(others: Sequence[tuple[str, str]], *, loads: bool) -> list[Check]:
    """Return the checks of the tables whose engines have no transactions."""
    locked = [f"{name} ({engine})" for name, engine in others if engine in OF_LOCKS]
    lost = [(name, engine) for name, engine in others if engine not in OF_LOCKS]
    checks = []
    if lost:
        checks.append(Check(
            "engines", False, "the changes of these tables are not in the binlog as rows",
            "leave them out by these flags, or run ALTER TABLE … ENGINE = InnoDB",
            required=loads,
            fixes=tuple(f"--ignore-table {name}" for name, _ in lost),
            names=tuple(f"{name} ({engine})" for name, engine in lost),
        ))  # fmt: skip
    if locked and loads:
        checks.append(Check(
            "engines", False,
            "without transactions; writes to these tables wait while the load reads them",
            "a transaction that changes them and is rolled back stops the source",
            required=False, names=tuple(locked),
        ))  # fmt: skip
    return checks or [Check("engines", True, "all tables have transactions")]


def checked_flavor(address: ServerAddress) -> Flavor:
    """Return the server's flavor; raise `NeedsOperator` if it cannot be replicated."""
    with address.session() as connection:
        for check in check_server(connection):
            if check.passed:
                continue
            finding = f"{check.name} is {check.found}"
            if check.required:
                raise NeedsOperator(f"{address}: {finding}", check.remedy, Code.SERVER_SETTING)
            log.warning("%s: %s: %s", address, finding, check.remedy)
        return identify(connection).flavor

"""Error codes: each error that an operator can see has a number whose meaning never changes.

Every error carries a code (`penstock.errors`). An error that is shown to a person ends with its
code: `[PS-1001]`. Raise sites share a code if cause and remedy are the same for an operator.
`deploy/error_pages.py` generates a page of the documentation for each subject.

A number is never reused: `tests/unit/penstock/codes.txt` records all codes that were ever assigned,
including codes that are no longer in use. A new code takes the next free number of its subject:

    1xxx  programs, settings, commands     6xxx  the Drainer and Spark
    2xxx  etcd, nodes, time                7xxx  the downstream
    3xxx  a Pump and its disk              8xxx  a MySQL or MariaDB as the upstream
    4xxx  binlogs, rows, writers           9xxx  a TiDB as the upstream
    5xxx  DDL and the schema

The module is long because it is a single table. It holds nothing else.
"""

from __future__ import annotations

import re
from enum import Enum, unique
from typing import Final

_NOT_STARTED: Final = "The program does not start and exits with code 2. Nothing has changed."
_NOT_DONE: Final = "The command exits with this error. Nothing has changed."
_AGAIN: Final = "The operation is retried until it succeeds. Nothing is lost or skipped."
_CALLER: Final = "The call raises the error and stores nothing."
_CALLER_READS: Final = (
    "The call raises the error. The Pumps keep all binlogs that the reader has not received."
)
_DRAINER_STOPS: Final = (
    "The Drainer stops before this place and exits with code 2. It applies nothing that follows."
    " The Pumps keep the binlogs that it has not pulled."
)
_SOURCE_STOPS: Final = (
    "The source stops before this place. Its status shows `failed` and the possible overrides. Its"
    " relay log continues to receive binlogs."
)
_FOLLOWER_STOPS: Final = (
    "A program that runs the statement gets the error, and the statement is not executed. A source"
    " or a Drainer that reaches the statement in its stream stops before it and applies nothing"
    " that follows."
)
_PUMP_STOPS: Final = (
    "The Pump does not start, or stops with an error. It never skips corrupted data: Drainers wait"
    " at the last binlog before it."
)


@unique
class Code(Enum):
    """An error code: its number, its meaning, its effect (`meanwhile`) and its remedy."""

    def __init__(self, number: int, meaning: str, meanwhile: str, remedy: str) -> None:
        self.number = number
        self.meaning = meaning
        self.meanwhile = meanwhile
        self.remedy = remedy

    def __str__(self) -> str:
        """Return the form that users see: PS-1001."""
        return f"PS-{self.number}"

    # Programs and their settings.

    SETTING_UNKNOWN = (
        1001,
        "A setting, an environment variable or a key of the settings file is unknown.",
        _NOT_STARTED,
        "Correct the name. The error suggests the most similar known name. Remove keys that belong"
        " to another program.",
    )
    SETTING_VALUE = (
        1002,
        "The value of a setting is invalid.",
        _NOT_STARTED,
        "Use a value that the error lists. The name of a setting shows its unit: `_s` is seconds,"
        " `_bytes` is bytes.",
    )
    SETTING_MISSING = (
        1003,
        "A required setting is missing.",
        _NOT_STARTED,
        "Set it as a flag, as an environment variable or in the settings file.",
    )
    SETTINGS_CONTRADICT = (
        1004,
        "Two settings contradict each other, or a setting is given twice.",
        _NOT_STARTED,
        "Remove one of the two. Penstock does not choose between them.",
    )
    SETTINGS_FILE = (
        1005,
        "The settings file cannot be read, or is not valid TOML.",
        _NOT_STARTED,
        "Check the path in `--config` and the permissions of the file. `penstock init DIR` writes"
        " sample files.",
    )
    SETTING_UNSUPPORTED = (
        1006,
        "A setting of TiDB-Binlog is not supported.",
        _NOT_STARTED,
        "Remove the setting and use the alternative that the hint names. Supported settings are"
        " converted. A setting that would change which data is replicated is never ignored"
        " silently.",
    )
    LOG_FILE = (
        1007,
        "The log file cannot be opened.",
        "A program does not start. A running node continues with the file that it has open.",
        "Grant the node's account write permission for the file, or configure another file.",
    )
    ADDRESS_TAKEN = (
        1008,
        "The node cannot listen on a configured address.",
        _NOT_STARTED,
        "Find the process that uses the port (`ss -ltnp`). It may be a previous process of the same"
        " node. Stop it, or configure another address.",
    )
    PACKAGE_MISSING = (
        1009,
        "A Python package that this role requires is not installed, or cannot be imported.",
        _NOT_STARTED,
        "Install the extra that the message names into the same virtual environment.",
    )
    PATH_UNUSABLE = (
        1010,
        "The operating system rejects access to a file or directory.",
        "The program exits with code 2. If a disk is full, it exits with code 1, so that a"
        " supervisor restarts it. All data acknowledged before the error is on disk.",
        "Check the path that the message names. Common causes are permissions, a full disk and a"
        " path that does not exist.",
    )
    PROGRAM_MISSING = (
        1011,
        "An external program that the demo or a test starts is not installed.",
        _NOT_DONE,
        "Run the command that the hint names. In a clone, `make setup` installs all of these"
        " programs.",
    )
    CHILD_FAILED = (
        1012,
        "A server that the demo started has failed.",
        "The demo exits and stops the other servers that it started.",
        "Read the lines of the server's log in the error. Common causes are memory, disk space and"
        " a port that is in use.",
    )
    FOLDER_EXISTS = (
        1013,
        "`penstock init` found an existing file at a path that it would write.",
        "Nothing is written. `penstock init` never overwrites a file.",
        "Name a new directory, and copy the parts that you need by hand.",
    )
    CLOSED = (
        1014,
        "The client, connection or node is closing or closed.",
        "The call ends without effect. This is normal while a program stops.",
        "If your program gets this error, it used a client after `close()`: connect again. If the"
        " error appears in a node's log, ignore it.",
    )
    DEFECT = (
        1015,
        "Penstock has detected a defect in itself: an internal invariant does not hold.",
        "The node stops with exit code 1 before it can cause damage. Work in progress is not part"
        " of the checkpoint.",
        "Report the defect with the traceback and the log since the node's last start. A restart is"
        " safe: the node resumes from the checkpoint.",
    )
    ASSERTIONS_OFF = (
        1016,
        "The node was started with `python -O`, which disables the checks that protect the data.",
        _NOT_STARTED,
        "Start the node without `-O` and without the environment variable PYTHONOPTIMIZE.",
    )

    # Filters and routes.

    FILTER_RULE = (
        1101,
        "An event rule is invalid.",
        _NOT_STARTED,
        "Correct the rule. The error gives its number in the file and the reason.",
    )
    FILTER_PATTERN = (
        1102,
        "A name pattern is invalid, or can never match.",
        _NOT_STARTED,
        "Use `*` only at the end of a pattern, or start the pattern with `~` to write a regular"
        " expression. See [Filters and routes](drainer/guide/filters_and_routes.md).",
    )
    ROUTE_RULE = (
        1103,
        "A route is invalid.",
        _NOT_STARTED,
        "Correct the route. The error names it and the reason. See [Filters and"
        " routes](drainer/guide/filters_and_routes.md).",
    )
    ROUTE_AMBIGUOUS = (
        1104,
        "Two routes match the same table, and neither is more specific.",
        "No change of the table is applied. Penstock does not guess the intended name.",
        "Change the patterns so that only one route matches, or so that one of them names the table"
        " exactly.",
    )
    FILTER_EXPRESSION = (
        1105,
        "The expression of a row filter cannot be parsed, or does not fit its table.",
        "The program does not start. A running program stops at the DDL after which the expression"
        " no longer fits the table.",
        "Correct the expression. See [Filters and routes](drainer/guide/filters_and_routes.md) for"
        " the supported syntax.",
    )
    FILTER_STOPS = (
        1106,
        "An event matches an event rule whose action is `Error`.",
        _DRAINER_STOPS,
        "The rule requests this stop. Decide how to handle the event, change the rule and restart"
        " the node.",
    )
    DDL_PARTLY_FILTERED = (
        1107,
        "A DDL concerns both replicated tables and tables that a filter excludes.",
        "The node stops before the statement. It neither runs the whole statement nor splits it.",
        "Run the part that concerns the replicated tables downstream by hand. Then track the DDL"
        " with `penstock drainer ddl track`, or on a source with the `penstock source` override"
        " that its status shows. See [When a Drainer stops or skips"
        " changes](drainer/guide/when_it_stops.md).",
    )
    SHARDS_DIFFER = (
        1108,
        "Several tables are routed to one table, and their definitions are incompatible.",
        "The node stops before the DDL, or before the load of the table.",
        "Make the upstream tables identical. Or change the downstream table by hand so that it"
        " accepts the rows of all of them, and track the DDL.",
    )
    ROUTE_COLUMN = (
        1109,
        "A route adds a column for the origin of a row, but the rows already have a column of that"
        " name.",
        "The node stops before the first row of the table. No value is overwritten.",
        "Set another `target-column` in the route.",
    )

    # TLS and passwords.

    TLS_FILES = (
        1201,
        "The PEM files for TLS are unreadable, encrypted, or do not match each other.",
        "A program does not start. A running node continues with the files that it read last.",
        "Check `ssl-ca`, `ssl-cert` and `ssl-key`: the node must be able to read the files, and the"
        " key must match the certificate. See [TLS](deploy/README.md#tls).",
    )
    TLS_NOT_TRUSTED = (
        1202,
        "A certificate is not trusted: its CA or host name differs, or it has expired.",
        "No connection is established. A program that starts exits. A running node retries, because"
        " certificates can be renewed without a restart.",
        "Renew the certificate, or configure the CA that signed it. The error names the file and"
        " the address. See [TLS](deploy/README.md#tls).",
    )
    TLS_REFUSED = (
        1203,
        "The peer rejects this node's certificate.",
        "No connection is established. A program that starts exits. A running node retries.",
        "Use a certificate that the peer's CA has signed and whose common name is listed in the"
        " peer's `cert-allowed-cn`.",
    )
    TLS_MISMATCH = (
        1204,
        "One side of a connection uses TLS and the other does not.",
        "No connection is established.",
        "Enable TLS on both sides, or disable it on both. Either all nodes of a cluster use TLS, or"
        " none.",
    )
    PASSWORD_FILE = (
        1205,
        "A `password-file` is empty or cannot be read.",
        "No connection to that database is established. The file is read again for each"
        " connection.",
        "Write the password to the file, and grant the node's account read permission.",
    )
    PASSWORD_ENCRYPTED = (
        1206,
        "An encrypted password cannot be decrypted.",
        _NOT_STARTED,
        "Set the environment variable to the key that was used for encryption, or use a"
        " `password-file`.",
    )

    # Commands.

    COMMAND_UNKNOWN = (
        1301,
        "A program, command, action or flag is unknown.",
        _NOT_DONE,
        "Choose a name that the error lists. `--help` describes each of them.",
    )
    COMMAND_ARGUMENT = (
        1302,
        "An argument of a command is missing or invalid.",
        _NOT_DONE,
        "Give the argument as the hint describes. `--help` of the command lists all arguments.",
    )
    NODE_UNKNOWN = (
        1303,
        "No node of this name is registered in etcd.",
        _NOT_DONE,
        "Use a name that the error lists. Check that `--etcd-urls` names the correct cluster.",
    )
    NODE_AWAY = (
        1304,
        "A node does not answer.",
        _NOT_DONE,
        "Start the node if it is not running. If it is running, check that its address in etcd is"
        " reachable from this machine.",
    )
    NODE_STATE = (
        1305,
        "The state of a node does not allow the operation, or makes it unnecessary.",
        _NOT_DONE,
        "Check the node's status, and retry when it has left the state that the error names.",
    )
    NODE_OTHER = (
        1306,
        "Another node or another program answers at this address.",
        _NOT_DONE,
        "List the nodes again. The address in etcd is out of date, or another program now uses the"
        " port.",
    )
    NODE_REFUSES = (
        1307,
        "A node rejects the request and gives the reason in its answer.",
        _NOT_DONE,
        "Read the answer in the message, and read the node's log for details.",
    )
    NODE_ALIVE = (
        1308,
        "The command is only for dead nodes, and this node is or may be alive.",
        "Nothing has changed: on a live node the command would lose binlogs.",
        "Stop the node, or wait until its heartbeats have been absent for several seconds. Make"
        " sure that no frozen process of the node remains.",
    )
    NODE_HOLDS_BINLOGS = (
        1309,
        "A Pump that is to go offline has, or may have, binlogs that exist nowhere else.",
        "The Pump keeps its state. No binlog is lost.",
        "Start the Pump and the Drainers that the error names, so that the Pump can deliver its"
        " binlogs. If its disk is permanently lost, see [When a Drainer stops or skips"
        " changes](drainer/guide/when_it_stops.md).",
    )
    LOSS_TOO_LARGE = (
        1310,
        "The loss of these binlogs cannot be declared.",
        _NOT_DONE,
        "First wait until the Drainers have received all available binlogs. `lost-pump` shows the"
        " loss of each Drainer before you confirm it. A declaration can be extended, but never"
        " withdrawn.",
    )
    NOT_CONFIRMED = (
        1311,
        "A command that permanently discards binlogs was not confirmed.",
        _NOT_DONE,
        "Read the loss that the command prints. To accept it, run the command with `--confirm`.",
    )
    WAIT_ENDED = (
        1312,
        "The `--timeout` of a command expired before the node reached the requested state.",
        "The node continues. Only the command has ended, with exit code 1.",
        "Check the node's status, which shows the cause of the wait.",
    )
    NO_LOG_HERE = (
        1313,
        "The path does not contain a log of a Pump.",
        _NOT_DONE,
        "Name the `data-dir` of a Pump, or a `.seg` file in it.",
    )
    OVERRIDE_TOO_LATE = (
        1314,
        "An override comes too late: its DDL or its place has already been processed.",
        _NOT_DONE,
        "Run `penstock drainer ddl list` or `penstock source status` to see the processed"
        " statements and the overrides that can still be undone. Processed statements are not"
        " changed.",
    )
    OVERRIDE_UNKNOWN = (
        1315,
        "An override does not refer to any known DDL, place or table.",
        _NOT_DONE,
        "Run `penstock drainer ddl list` to see each DDL with its `commit_ts`, or `penstock source"
        " status` to see places and tables.",
    )
    DRAINER_BUSY = (
        1316,
        "A Drainer is currently performing the operation that the command would change.",
        _NOT_DONE,
        "Wait until the DDL has finished, or stop the Drainer and its standbys first.",
    )
    GAP_NOT_ACCEPTED = (
        1317,
        "Replicating a table again, or reloading it, would leave a temporary gap downstream.",
        _NOT_DONE,
        "Load the table again. Or confirm with `--accept-gap` and repair the table with `penstock"
        " verify --repair`. The message describes the missing changes.",
    )
    DRAINER_NEEDED = (
        1318,
        "A running Drainer cannot be skipped, because it would lose binlogs.",
        _NOT_DONE,
        "Let the Drainer catch up, or take it offline with `penstock ctl offline-drainer`.",
    )

    CONSOLE_TOKEN = (
        1319,
        "The console's token is not text, is too short, or would be sent unencrypted.",
        "The console does not start and exits with code 2.",
        "Create a token with `openssl rand -hex 24`. A console with a token requires TLS unless it"
        " listens on 127.0.0.1.",
    )

    # Etcd and the nodes of a cluster.

    ETCD_AWAY = (
        2001,
        "Etcd does not answer.",
        "Running nodes continue with the data that they have, and retry. Operations that need etcd"
        " wait: a start, a DDL, and new timestamps after the oracle's window has ended. Nothing is"
        " lost.",
        "Check etcd, and check that this machine can reach it at the addresses that the error"
        " names.",
    )
    ETCD_REFUSES = (
        2002,
        "Etcd denies access.",
        "A program does not start. A running node retries.",
        "Check the users and roles of etcd, and the certificates in `etcd-ssl-…`.",
    )
    ETCD_VALUE = (
        2003,
        "A key in etcd has a value that no Penstock node wrote.",
        "Operations that depend on the key stop. The key is never overwritten.",
        "Correct or delete the key as the hint describes. Find out who wrote it: another cluster or"
        " program may use the same etcd.",
    )
    CLUSTER_MISMATCH = (
        2004,
        "A data directory, a writer, a Pump or a relay log belongs to another cluster.",
        "It is rejected before it writes anything.",
        "Check `etcd-urls` and `data-dir`. If etcd was lost and set up again, restore its snapshot,"
        " or restore the cluster's id before any node starts.",
    )
    NODE_ID_TAKEN = (
        2005,
        "Another process uses this node id.",
        "This process does not become a node. The other process is not affected.",
        "Stop the other process, or start this process with another `--node-id` and a separate data"
        " directory.",
    )
    DATA_DIR_OTHER = (
        2006,
        "The data directory belongs to another node.",
        _NOT_STARTED,
        "Omit `--node-id`, so that the id stored in the directory applies, or use another"
        " directory. Never rename a node by editing its directory.",
    )
    DATA_DIR_IN_USE = (
        2007,
        "Another process has this data directory open.",
        _NOT_STARTED,
        "Stop the other process, or use another directory.",
    )
    DATA_OF_TIDB_BINLOG = (
        2008,
        "The directory contains binlogs of a TiDB-Binlog Pump.",
        _NOT_STARTED,
        "Use an empty directory and another node id, and let the old Pump deliver its binlogs. See"
        " [From TiDB-Binlog to Penstock](drainer/guide/from_tidb_binlog.md).",
    )
    PUMP_LOST = (
        2009,
        "This Pump was declared lost, and Drainers have continued without it.",
        _NOT_STARTED,
        "Start a new Pump with an empty directory and another node id. `penstock ctl dump` reads"
        " the log of the lost Pump.",
    )
    LOST_BINLOGS_NEEDED = (
        2010,
        "A Drainer needs binlogs of a Pump that was declared lost.",
        _DRAINER_STOPS,
        "If possible, restore the downstream from a backup that contains these binlogs. Otherwise"
        " declare them lost with `lost-pump --accept-loss-after` at a lower timestamp. They are"
        " then lost downstream.",
    )
    DRAINER_NOT_NOTIFIED = (
        2011,
        "A starting Pump cannot notify a live Drainer.",
        "The Pump does not accept its first transaction yet, because that Drainer would miss it.",
        "Check that the Pump can reach the Drainer's address in etcd, and read the Drainer's log."
        " The Pump skips a Drainer that has sent no heartbeat for ten seconds.",
    )

    # Time.

    ORACLE_AWAY = (
        2101,
        "The timestamp oracle does not answer.",
        _AGAIN,
        "Check that the oracle, which is a Pump or a PD, runs and is reachable. If a Pump was the"
        " oracle, another Pump takes over automatically within seconds.",
    )
    ORACLE_NONE = (
        2102,
        "No Pump is elected as the timestamp oracle.",
        "Writers wait and retry. No transaction commits.",
        "Start a Pump. If Pumps are running, an election is in progress, which takes seconds. If"
        " the error persists, check etcd.",
    )
    ORACLE_MOVED = (
        2103,
        "This Pump is no longer the timestamp oracle: another Pump has taken over.",
        "Clients switch to the new oracle automatically.",
        "No action is required. If the error recurs, etcd or the Pumps are too slow to renew their"
        " leases.",
    )
    PD_AWAY = (
        2104,
        "No PD answers.",
        _AGAIN,
        "Check that PD runs at `pd-address` and is reachable from this machine.",
    )
    PD_CLUSTER = (
        2105,
        "PD and etcd belong to different clusters.",
        "The node does not start, or stops before it uses a timestamp of the other cluster.",
        "Check `etcd-urls` and `pd-address`. All timestamps of a cluster must come from the same"
        " source.",
    )

    # The DDL lock and the DDL history.

    LEASE_LOST = (
        2201,
        "The lease that proves that a writer knows the newest schema has expired.",
        "The writer commits nothing until it has a new lease. Uncommitted transactions are rolled"
        " back.",
        "Run the transaction again. If the error recurs, etcd is slow, or the process was suspended"
        " for seconds.",
    )
    DDL_LOCKED = (
        2202,
        "Another DDL is in progress.",
        "The DDL has not started.",
        "Retry when the other DDL has finished. The error names the writer that runs it.",
    )
    DDL_LOCK_LOST = (
        2203,
        "A writer lost the DDL lock before its statement was recorded.",
        "The statement was not executed.",
        "Run the statement again. If the error recurs, etcd is slow.",
    )
    DDL_WRITERS_LATE = (
        2204,
        "Some writers still have open transactions under the old schema.",
        "The DDL was not executed. The writers are not affected.",
        "Retry. The error names the writers: look there for long transactions.",
    )
    DDL_HISTORY = (
        2205,
        "The DDL history in etcd is incomplete, was changed, or contradicts the checkpoint.",
        _DRAINER_STOPS,
        "Restore `/penstock/v1/ddl` of etcd from a snapshot. Without a snapshot, start with a fresh"
        " copy of the data and an `initial-commit-ts` after the missing DDL. If an error of a"
        " writer names a DDL, give up that DDL with `penstock ctl lost-ddl`; the writers then"
        " continue.",
    )

    # A Pump's log on disk.

    SEGMENT_DAMAGED = (
        3001,
        "Bytes of a Pump's log differ from the bytes that were written.",
        "If another disk has a replica of the log, the Pump restores the bytes from it and"
        " continues. Otherwise the Pump does not start, or stops with an error. It never skips"
        " corrupted data: Drainers wait at the last binlog before it.",
        "If the message reports a repair, only check the disk. Otherwise start the other Pumps that"
        " have a replica of the log. If no replica exists, stop the Pump and copy its directory"
        " first; `penstock ctl dump DIR --summary` shows the readable binlogs. Restore the file"
        " from a backup, and check the disk. Without a backup, see [When a Drainer stops or skips"
        " changes](drainer/guide/when_it_stops.md).",
    )
    SEGMENT_CUT_SHORT = (
        3002,
        "A file of a Pump's log is missing or shorter than before.",
        "If another disk has a replica of the log, the Pump fetches the file from it, unless it is"
        " the last file of the log. Otherwise the Pump does not start, or stops with an error. It"
        " never skips corrupted data: Drainers wait at the last binlog before it.",
        "Start the other Pumps that have a replica of the log. If no replica exists, restore the"
        " file from a backup. Check the mount options and the kernel's log: a file system that"
        " loses synced data must not be used for a Pump.",
    )
    SEGMENTS_MISSING = (
        3003,
        "Files in the middle of a Pump's log are missing.",
        _PUMP_STOPS,
        "First start the other Pumps that have a replica of the log, or restore the files. Only if"
        " no disk has them, set `accept-loss-up-to-ts` in `[storage]`. The contents of the missing"
        " files, and everything before them, are then lost, and Drainers whose checkpoint is"
        " earlier are rejected.",
    )
    SEGMENT_VERSION = (
        3004,
        "A file of a Pump's log was written by a newer version.",
        _NOT_STARTED,
        "Use the version that wrote the file, or a newer version.",
    )
    LOG_WRITE_FAILED = (
        3005,
        "A write or a sync to the disk failed.",
        "The binlogs of that write are not acknowledged. After a failed sync the Pump continues in"
        " a new file, because the state of the old file on disk is unknown.",
        "Check the disk and the kernel's log. Writers switch to another Pump automatically.",
    )
    LOG_UNREADABLE = (
        3006,
        "The disk fails to read a part of a Pump's log.",
        "Drainers wait at this place and retry. Nothing is skipped.",
        "Check the disk and the kernel's log. Copy the directory to another disk while it is still"
        " readable.",
    )
    INDEX_DAMAGED = (
        3007,
        "A Pump's index is corrupted, or has another format.",
        "No binlog is lost. A Pump that starts deletes the index and rebuilds it from the log. A"
        " running Pump cannot serve the corrupted part.",
        "Restart a running Pump, so that it rebuilds the index from the log. If the corruption"
        " recurs, check the disk.",
    )
    INDEX_AWAY = (
        3008,
        "The disk fails to read or write a part of a Pump's index.",
        _AGAIN,
        "Check the disk: free space, permissions, the kernel's log.",
    )
    DISK_FULL = (
        3009,
        "The free space on a Pump's volume is down to the reserve.",
        "The Pump accepts no new transactions. Commits of open transactions still fit. Writers"
        " switch to another Pump automatically.",
        "Find out why the log grows: it is purged only after the slowest Drainer has read it. Then"
        " reduce `gc-days`, enlarge the disk, or start another Pump. Never delete files of the"
        " log.",
    )

    # Requests that a Pump rejects.

    TRANSACTIONS_OPEN = (
        3101,
        "A Pump has reached its limit of open transactions.",
        "The Pump accepts no new transactions. Open transactions can still end.",
        "Find out why the oldest transaction does not end. Usually the resolver's database is"
        " unreachable.",
    )
    PUMP_OVERLOADED = (
        3102,
        "The write queue of a Pump is full.",
        "The Pump rejects the request. Writers retry or use another Pump.",
        "If the error persists, the disk is too slow for the writers. Check"
        " `penstock_pump_fdatasync_seconds`, or start another Pump.",
    )
    PUMP_NOT_ONLINE = (
        3103,
        "A Pump that is not online accepts no new transactions.",
        "Writers use another Pump. The Pump still accepts Commits of open transactions.",
        "If the Pump is stopping, no action is required. Otherwise check its status for the cause"
        " of the wait.",
    )
    BINLOG_TOO_LARGE = (
        3104,
        "A transaction, or a binlog in a single message, exceeds the limit of this Pump.",
        _CALLER,
        "Write smaller transactions, or raise `transaction-bytes-max` or `max-message-bytes` on all"
        " Pumps and Drainers.",
    )
    BINLOG_INVALID = (
        3105,
        "A writer sent a message that violates the protocol.",
        _CALLER,
        "Correct or upgrade the writer: it has a defect or uses another version. The message names"
        " the violation.",
    )
    CONTRADICTION = (
        3106,
        "A binlog contradicts a stored binlog.",
        "The Pump rejects the new binlog and keeps the stored binlog.",
        "Correct the writer: it or its clock violates the protocol. Check that all writers get"
        " their timestamps from the same oracle, and that no restored copy of a writer is running.",
    )
    PREWRITE_MISSING = (
        3107,
        "A Pump received a Commit but does not have its Prewrite.",
        "The Pump rejects the Commit, and the writer retries.",
        "For some seconds after a restart this is normal. If the error persists, check whether the"
        " data directory was replaced.",
    )
    BINLOG_PURGED = (
        3108,
        "A Drainer requests purged binlogs.",
        "The Drainer stops with exit code 2. Nothing is skipped silently.",
        "Restore the downstream from a newer backup: the Drainer resumes from the checkpoint in it."
        " To prevent the error, raise `gc-days` to the longest time for which a Drainer may be"
        " down.",
    )
    BINLOG_NOT_HERE = (
        3109,
        "A Spark task requests a binlog that this Pump cannot send separately.",
        "The batch is not applied.",
        "Restart the Drainer, which requests the binlog again. Check whether the Pump's data"
        " directory was replaced.",
    )
    BINLOG_AHEAD = (
        3110,
        "A binlog has a timestamp that the oracle cannot have allocated yet.",
        "The Pump rejects the binlog and checks with the oracle, and the writer retries. If it were"
        " stored, it would block all other transactions until that time.",
        "Correct the writer: every timestamp must come from the oracle, or the PD, of this"
        " cluster.",
    )

    # Resolvers: the outcome of a transaction.

    RESOLVER_URL = (
        3201,
        "The `resolver.url` of a Pump is invalid.",
        _NOT_STARTED,
        "Write it as the hint describes: one URL, or `name=URL` for each outbox.",
    )
    RESOLVER_AWAY = (
        3202,
        "The database that determines the outcome of a transaction does not answer.",
        "The Prewrite stays open and blocks the merge. The Pump retries.",
        "Check that the database runs and that the Pump can reach it.",
    )
    RESOLVER_OUTBOX = (
        3203,
        "A transaction comes from an outbox that this Pump does not know.",
        "A new Prewrite of the outbox is rejected. A stored Prewrite stays open and blocks the"
        " merge.",
        'Set `resolver.kind = "sql"`, and add `name=URL` of the outbox to `resolver.url` on every'
        " Pump.",
    )

    # Requests for a replica that its Pump rejects.

    COPY_OTHER_DISK = (
        3301,
        "A Pump requests the replica of its log on a disk that this Pump does not have.",
        "The request is rejected. The requesting Pump removes the disk from the replica set and"
        " looks for another disk.",
        "If the data directory was replaced or lost, no action is required. If it was restored from"
        " a copy of another machine's directory, stop that Pump: two Pumps must not use the same"
        " directory.",
    )
    COPY_MALFORMED = (
        3302,
        "A Pump sent inconsistent data for the replica of its log.",
        "The data is rejected, and the replica is unchanged. The Pump that sent the data continues"
        " with its other replicas.",
        "Check the versions of the two Pumps. If they differ, upgrade the Pump with the replica"
        " first. If they are equal, check the network between the Pumps, or report a defect.",
    )
    COPY_NOT_FOLLOWED = (
        3303,
        "The replica of a log currently accepts no data.",
        "The requesting Pump retries. If the error persists, it removes the disk from the replica"
        " set.",
        "Check whether a Pump has taken over the log and runs on the replica. Otherwise read the"
        " preceding log lines: they say why the directory of the replica cannot be opened.",
    )

    # A Pump's own log and its replicas.

    TOO_FEW_COPIES = (
        3304,
        "A Pump's log has fewer copies than `copies-min` requires.",
        "The Pump acknowledges nothing. Writers use another Pump for new transactions; Commits of"
        " open transactions wait. The Pump resumes automatically when a replica has returned or a"
        " new replica has joined.",
        "Start the Pumps that are down, or an additional Pump. `copies-min` is the smallest number"
        " of copies with which the Pump continues.",
    )
    LOG_DEPOSED = (
        3305,
        "A Pump has detected that another Pump now serves its log.",
        "The Pump stops before it acknowledges anything more. All binlogs that it acknowledged are"
        " also on the other Pump.",
        "Usually no action is required: the log was moved, or failed over because the Pump did not"
        " answer. The Pump's supervisor restarts it. After a failover, find out why the Pump did"
        " not answer, and check `takeover-after-s`.",
    )
    LOG_DISPLACED = (
        3306,
        "A Pump starts whose log another Pump has taken over.",
        "The Pump waits, and accepts replicas of other logs. When every Drainer has read all of the"
        " former log, the Pump sets its old files aside and starts a new log under its name.",
        "While all Drainers run, no action is required. The process that serves the log answers"
        " `penstock ctl status` of this node id, and lists the late Drainers in `closing`. Start a"
        " Drainer that is down.",
    )
    LOG_ENTRY_GONE = (
        3307,
        "The replica list of a log is no longer in etcd.",
        "The Pump does not start, or does not change its replicas.",
        "Check that this is the cluster's etcd. If etcd lost its data, see [Restoring from"
        " backups](restoring.md#etcd): compare a snapshot with the disks of all Pumps. `penstock"
        " ctl adopt-log` names the disk that continues a log. Do not start an older data directory:"
        " the binlogs acknowledged since then are missing in it.",
    )
    BYTES_NOT_HERE = (
        3308,
        "A Pump does not have the bytes of a log that were requested to repair another disk.",
        "The Pump that repairs its disk asks another disk with the log.",
        "No action is required. If no disk has the bytes, the corruption remains and is reported"
        " with a separate error.",
    )
    COPY_INCOMPLETE = (
        3309,
        "The replica of a log lacks data that its disk has according to etcd.",
        "No Pump starts on the replica, because it would serve the log without the missing data.",
        "Check whether the replica's directory or a file in it was deleted, and restore it if"
        " possible. Otherwise start the Pump of the log, or another Pump that etcd lists for the"
        " log.",
    )
    LOG_NOT_MOVED = (
        3310,
        "A Pump's log cannot be moved to the requested Pump, or is already there.",
        "The log stays at its place, and its Pump serves it.",
        "Follow the error, which names the cause and the remedy. A log with a single copy cannot be"
        " moved. `copies-apart` and `copies-min` can require a Pump other than the requested Pump.",
    )

    LOG_OLDER = (
        3311,
        "A Pump's data directory, or a replica in it, is older than the log, for example from a"
        " backup.",
        "The Pump does not serve the log. Otherwise all binlogs acknowledged since then would"
        " disappear silently, and replicas would be truncated to the contents of the directory.",
        "With replicas, keep the directory elsewhere, and start the Pump with an empty directory."
        " Another Pump serves the log from its replica, and nothing is lost. Without replicas,"
        " start the Pump with its newest directory. If that directory is permanently lost,"
        " `penstock ctl lost-pump` discards the binlogs that only it held, and a Pump with another"
        " node id replaces it. See [Restoring from backups](restoring.md#a-pumps-data-folder).",
    )
    LOG_PUT_BACK = (
        3312,
        "The replica list of a log in etcd is older than a disk, or disks have diverged.",
        "The Pump does not serve the log, because newer replicas would be truncated to its state."
        " If one disk has everything that any disk has, its Pump continues the log when all Pumps"
        " run.",
        "Check whether etcd was restored from a backup. Start all Pumps of the cluster, including"
        " Pumps that are offline in etcd. If the histories have diverged, the error names each"
        " history and the `penstock ctl adopt-log` command that continues it. Before you run the"
        " command, back up the directory of the other history, because its additional data is lost."
        " If no disk has the log, the error names the command that starts a new log. See [Restoring"
        " from backups](restoring.md#etcd).",
    )

    # Binlogs and rows.

    BINLOG_UNDECODABLE = (
        4001,
        "The bytes of a binlog violate its format.",
        _DRAINER_STOPS,
        "Make sure that writer, Pumps and Drainer use the same `binlog.proto`. Find the writer by"
        " the transaction's `commit_ts`. To skip the transaction, which loses its rows, see [When a"
        " Drainer stops or skips changes](drainer/guide/when_it_stops.md).",
    )
    BINLOG_CHUNKS = (
        4002,
        "The chunks of a large transaction are inconsistent.",
        "The Pump rejects the chunks, or stops at them. Nothing is skipped.",
        "Correct or upgrade the writer: it has a defect or uses another version.",
    )
    ROW_MALFORMED = (
        4003,
        "The bytes of a row violate TiDB's row format.",
        _DRAINER_STOPS,
        "Find the writer by the transaction's `commit_ts`: it has a defect, or wrote the row with"
        " another version of the table. Before you skip the transaction, repair the downstream by"
        " hand.",
    )
    VALUE_REFUSED = (
        4004,
        "A row, or a value in it, does not fit its table.",
        _CALLER,
        "Give a value for each column that the column can hold.",
    )
    COLUMN_TYPE = (
        4005,
        "A column has a type for which no row format exists.",
        _FOLLOWER_STOPS,
        "Exclude the table with a filter, or change the column.",
    )
    TABLE_KEY = (
        4006,
        "A table has no key of stored columns that identifies its rows.",
        _DRAINER_STOPS,
        "Give the table a primary key of stored columns.",
    )

    # Writers.

    TABLE_UNKNOWN = (
        4101,
        "A writer names a table that does not exist, or that accepts no rows.",
        _CALLER,
        "Correct the name, or create the table with `client.ddl`.",
    )
    TABLE_CHANGED = (
        4102,
        "A table was dropped or truncated while a transaction was writing to it.",
        "The transaction is rolled back.",
        "Run the transaction again.",
    )
    TRANSACTION_OVER = (
        4103,
        "A transaction was used after its end.",
        _CALLER,
        "Start a new transaction.",
    )
    TRANSACTION_TOO_OLD = (
        4104,
        "Too much time has passed between a transaction's timestamp and its commit.",
        "The transaction is not committed.",
        "Run the transaction again. Fetch the timestamp later, or commit sooner.",
    )
    TRANSACTION_TOO_LARGE = (
        4105,
        "A transaction has more rows than `transaction_bytes_max` allows.",
        "The transaction is rolled back.",
        "Commit more often, or raise the option here and on the Pumps.",
    )
    WRITER_SPOOL = (
        4106,
        "The temporary file of a large transaction cannot be written or read.",
        "The transaction is rolled back.",
        "Free space in that directory, or set another directory in `Options.spill_dir`.",
    )
    COMMIT_WITHOUT_PREWRITE = (
        4107,
        "A Commit was passed to a client that did not write its Prewrite.",
        _CALLER,
        "Write the Prewrite and its Commit through the same client.",
    )
    NO_PUMP = (
        4108,
        "No online Pump may accept a writer's transactions.",
        "Nothing is committed.",
        "Run `penstock ctl pumps`. Start a Pump, with the labels that the writer requires.",
    )
    PREWRITE_NOT_TAKEN = (
        4109,
        "No Pump accepted a transaction within the time limit.",
        "The transaction was not committed.",
        "Run the transaction again. The message gives the last reason that a Pump reported.",
    )
    PREWRITE_REFUSED = (
        4110,
        "Every Pump permanently rejects a transaction.",
        "The transaction was not committed.",
        "Remove the cause that the message gives for the last Pump: the transaction's size, a full"
        " disk, or a certificate.",
    )
    COMMIT_ROLLED_BACK = (
        4111,
        "A Pump rolled a transaction back before its Commit arrived.",
        "The transaction was not committed.",
        "Run the transaction again. The writer was away for longer than the Pump's"
        " `txn-timeout-s`.",
    )
    COMMIT_LATE = (
        4112,
        "A Pump did not acknowledge Commits in time.",
        "The Pump determines their outcome. A source asks for the outcome before it continues.",
        "If the Pump returns, no action is required. Otherwise check the Pump.",
    )
    OUTCOME_UNKNOWN = (
        4113,
        "A Commit was sent but not answered: it is probably committed, but this is not certain.",
        "The client continues to deliver the Commit. The transaction will be committed completely"
        " or not at all.",
        "Call `error.wait()`. Do not run the transaction again before this call has returned the"
        " outcome.",
    )
    COMMIT_ORDER_BROKEN = (
        4114,
        "A transaction of a source was rolled back, but a later transaction is committed.",
        "The source stops. Committed transactions remain.",
        "Let the source continue. Each Drainer then stops before the later transaction (PS-6015),"
        " and its error names the next step. The source was away for longer than the Pumps'"
        " `txn-timeout-s`.",
    )

    # The outbox of an application's database.

    OUTBOX_UNUSABLE = (
        4201,
        "An outbox cannot be created for this connection or with this name.",
        _CALLER,
        "Use a connection of `sqlite3` or PyMySQL, and a name as the hint describes.",
    )
    OUTBOX_KEY = (
        4202,
        "Two transactions use the same key of an outbox.",
        "The Pump leaves the transaction open, because its outcome is unknown.",
        "Use a separate key for each transaction. `pumpclient.outbox` generates such keys.",
    )
    OUTBOX_FENCED = (
        4203,
        "A transaction took too long between its Prewrite and its commit in the database.",
        "The transaction is rolled back on both sides.",
        "Run the transaction again.",
    )
    OUTBOX_NOT_COMMITTED = (
        4204,
        "The application's database did not commit.",
        "The transaction was committed on neither side.",
        "Run the transaction again.",
    )
    OUTBOX_ENDED = (
        4205,
        "The database transaction was ended inside the block of an outbox.",
        "Changes that the database committed remain, without a binlog of this transaction.",
        "Do not use COMMIT, ROLLBACK or DDL in the block.",
    )
    OUTBOX_ROLLED_BACK = (
        4206,
        "The database committed a transaction that a Pump has rolled back.",
        "The rows are in the database, but will not arrive downstream.",
        'Set `resolver.kind = "sql"` and the URL of the database on every Pump, and write these'
        " rows again.",
    )

    # DDL statements.

    DDL_UNREADABLE = (
        5001,
        "A DDL statement cannot be parsed.",
        _FOLLOWER_STOPS,
        "Check the statement. If the server accepted it but Penstock cannot parse it, override it:"
        " see [When a Drainer stops or skips changes](drainer/guide/when_it_stops.md). Please"
        " report it.",
    )
    DDL_UNSUPPORTED = (
        5002,
        "A DDL statement contains an operation that Penstock does not support.",
        _FOLLOWER_STOPS,
        "Write the statement as the hint describes. Or run it downstream by hand and track it: see"
        " [When a Drainer stops or skips changes](drainer/guide/when_it_stops.md).",
    )
    DDL_NAME = (
        5003,
        "A name in a DDL statement is invalid.",
        _FOLLOWER_STOPS,
        "Choose another name.",
    )
    DDL_NOT_FOUND = (
        5004,
        "A DDL statement names a database, table or sequence that does not exist.",
        _FOLLOWER_STOPS,
        "Check the name. In a stream, the object was created before replication started, or while a"
        " filter excluded it.",
    )
    DDL_EXISTS = (
        5005,
        "A DDL statement creates an object that already exists.",
        _FOLLOWER_STOPS,
        "Drop the existing object, or choose another name.",
    )
    DDL_OTHER_KIND = (
        5006,
        "A DDL statement is for another kind of object: a table, a view or a sequence.",
        _FOLLOWER_STOPS,
        "Use the statement for that kind of object.",
    )
    DDL_DEFINITION = (
        5007,
        "The columns, keys or partitions of a table definition contradict each other.",
        _FOLLOWER_STOPS,
        "Correct the definition. The error names the contradiction. If a server accepts the"
        " definition, its version or sql_mode differs: override the statement.",
    )
    DDL_DEFAULT = (
        5008,
        "The default of a column cannot be used, or its value for existing rows cannot be"
        " determined.",
        _FOLLOWER_STOPS,
        "Add the column without that default, fill the column, then set the default.",
    )
    CHARSET = (
        5009,
        "A character set or a collation is unknown, or a text is not valid in it.",
        _FOLLOWER_STOPS,
        "Use `utf8mb4` and one of its collations, or override the statement.",
    )
    DDL_VIEW = (
        5010,
        "The tables that a view reads cannot be determined, or cannot be renamed in it.",
        _FOLLOWER_STOPS,
        "Create the view downstream by hand, and track the statement.",
    )
    DDL_SUCCESSOR = (
        5011,
        "It cannot be determined whether a new column has the values of a dropped column.",
        _DRAINER_STOPS,
        "Change the downstream by hand in the same way as upstream, then track the DDL.",
    )
    DDL_SEVERAL = (
        5012,
        "Several statements, or a statement with several effects, are given instead of a single"
        " one.",
        _NOT_DONE,
        "Give exactly one statement, with a single effect.",
    )
    DDL_ROLLED_BACK = (
        5013,
        "A DDL took too long and was rolled back.",
        "The statement was not executed.",
        "Run the statement again.",
    )

    # The Drainer.

    PUMP_DISORDER = (
        6001,
        "A Pump sent a transaction out of order.",
        _DRAINER_STOPS,
        "Check the Pump's log and `penstock ctl pumps`: two Pumps run under the same node id, or"
        " the Pump's files are corrupted.",
    )
    PUMP_CAME_BACK = (
        6002,
        "A Pump returned with transactions older than the place that the Drainer reached without"
        " it.",
        _DRAINER_STOPS,
        "Restore the downstream from a backup from before those transactions. Or read them with"
        " `penstock ctl dump`, repair the downstream by hand, and only then name them in"
        " `ignore-txn-commit-ts`.",
    )
    COMMIT_TS_TWICE = (
        6003,
        "Two transactions have the same `commit_ts`.",
        _DRAINER_STOPS,
        "Find the two writers, and make sure that all writers get their timestamps from the same"
        " oracle.",
    )
    PULL_REFUSED = (
        6004,
        "A Pump rejects a request of a Drainer for binlogs.",
        _DRAINER_STOPS,
        "Read the Pump's answer in the message. It contains the Pump's error code, if available.",
    )
    PULL_MALFORMED = (
        6005,
        "A Pump sent inconsistent data.",
        _DRAINER_STOPS,
        "Use compatible versions of Pumps and Drainer: upgrade the Pumps first.",
    )
    PUMP_LEFT = (
        6006,
        "A Pump went offline with binlogs that this Drainer has not read.",
        _DRAINER_STOPS,
        "Start the Pump with its data directory, then start the Drainer. Or restore the downstream"
        " from a newer backup.",
    )
    SPOOL = (
        6007,
        "The file in which a Drainer stores a large transaction cannot be written or read.",
        _DRAINER_STOPS,
        "Free space in the Drainer's `data-dir`, or configure another directory, and start the"
        " Drainer again.",
    )
    DDL_TOO_LARGE = (
        6008,
        "A DDL exceeds the maximum plausible size of a statement.",
        _DRAINER_STOPS,
        "Find the writer by the `commit_ts` in the message.",
    )
    SCHEMA_UNKNOWN = (
        6009,
        "Rows belong to a table or a schema version that this Drainer does not know.",
        _DRAINER_STOPS,
        "Check the DDL history (`penstock drainer ddl list`). The Drainer never guesses how to"
        " decode a row.",
    )
    SNAPSHOT_DAMAGED = (
        6010,
        "The file `schema.snapshot` of a Drainer is corrupted.",
        "The Drainer rebuilds the file from the DDL history.",
        "No action is required. If the error recurs, check the disk.",
    )
    SNAPSHOT_OVERRIDE = (
        6011,
        "The Drainer's schema depends on an override that is missing in the downstream's"
        " checkpoint.",
        _NOT_STARTED,
        "Restore the checkpoint. Delete the file only if this is another downstream.",
    )
    CHECKPOINT_AHEAD = (
        6012,
        "The checkpoint is later than the newest timestamp of the cluster.",
        _NOT_STARTED,
        "Check whether etcd was restored from a backup, or whether the checkpoint belongs to"
        " another cluster. If the Drainer started, it would skip every transaction until the clock"
        " has passed the checkpoint.",
    )
    CHECKPOINT_INCONSISTENT = (
        6013,
        "The downstream is between two consistent states, and the data to continue is missing.",
        _NOT_STARTED,
        "Start the Drainer that wrote the downstream, and shut it down cleanly. Then start this"
        " Drainer.",
    )
    LOOPBACK_TABLE = (
        6014,
        "The table that detects a loop between two clusters has an unexpected definition.",
        _DRAINER_STOPS,
        "Let a Drainer create the table: see [Filters and"
        " routes](drainer/guide/filters_and_routes.md).",
    )
    ORIGIN_GAP = (
        6015,
        "Transactions of a source are missing, or the source continues an epoch that it had left.",
        _DRAINER_STOPS,
        "Find the cause: a Pump's disk or directory was restored from a backup, a source was paused"
        " for longer than the Pumps' `txn-timeout-s`, or etcd was restored to before the source's"
        " last load. Then follow the hint: name the `commit_ts` in `accept-gap-commit-ts`, and"
        " repair the tables with `penstock verify --repair` or `penstock source reload`.",
    )

    # Spark.

    JAVA = (
        6101,
        "No Java installation for Spark was found.",
        _NOT_STARTED,
        "Install a JRE of version 17 or later, or the extra `jre`. To use another JRE, set"
        " `JAVA_HOME`.",
    )
    SPARK_ENDED = (
        6102,
        "Spark exited.",
        "The Drainer exits with code 1. Its supervisor restarts it from the checkpoint.",
        "Read `spark.log` in the Drainer's `data-dir`. The usual cause is memory.",
    )
    SPARK_TASK = (
        6103,
        "Spark tasks failed repeatedly on the same part of a batch.",
        _DRAINER_STOPS,
        "Read `spark.log` in the Drainer's `data-dir`. The usual cause is memory: reduce the"
        " batches with `batch-rows-max`.",
    )
    SPARK_VERSION = (
        6104,
        "A Spark task and the Drainer use different versions of Penstock.",
        _DRAINER_STOPS,
        "Remove any other version that precedes the Drainer's code on the executors' path. Restart"
        " a Drainer that was upgraded while it was running.",
    )
    SPARK_MESSAGE = (
        6105,
        "A message between a Drainer and its Spark tasks cannot be decoded.",
        _DRAINER_STOPS,
        "Run the same version on both sides. If the versions are equal, please report the error.",
    )

    # Programs that read the stream.

    READER_POSITION = (
        6301,
        "A program that reads the stream names an invalid position.",
        _CALLER_READS,
        "Pass a `checkpoint` of the reader unchanged, or a `commit_ts` as a number. Acknowledge"
        " only transactions of this reader, after you have stored them.",
    )
    READER_NAME = (
        6302,
        "The name of a reader contains invalid characters.",
        _CALLER_READS,
        "Use up to 100 letters, digits, dots, dashes and underscores. The first character must be a"
        " letter or a digit.",
    )
    READER_ROWS_GONE = (
        6303,
        "A program requests the changes of a large transaction after it has requested the next"
        " one.",
        _CALLER_READS,
        "Read the changes of a transaction before you request the next transaction, because large"
        " transactions are not kept. To read the changes again, restart from the last stored"
        " checkpoint.",
    )

    # The Drainer's relay log.

    DRAINER_LOG_DAMAGED = (
        6201,
        "The relay log of a Drainer is corrupted.",
        _DRAINER_STOPS,
        "If the Pumps still have its contents, move the relay log away and restart: the Drainer"
        " pulls from its checkpoint.",
    )
    DRAINER_LOG_LACKS = (
        6202,
        "The relay log lacks data to make the downstream consistent without Pumps.",
        _NOT_STARTED,
        "Make the upstream available again. Check whether the relay log was disabled, moved or"
        " emptied.",
    )
    DRAINER_LOG_FULL = (
        6203,
        "The disk has no space for the relay log of a Drainer.",
        _DRAINER_STOPS,
        "Free space, or move the relay log to another disk. Everything that was applied is in the"
        " relay log.",
    )
    DRAINER_LOG_ENDS = (
        6204,
        "The relay log ends at a DDL whose text it does not contain.",
        "The downstream is made consistent up to that DDL.",
        "Start the Drainer again when the upstream is available.",
    )

    # The downstream.

    SINK_URL = (
        7001,
        "The address of the downstream is invalid.",
        _NOT_STARTED,
        "Write `sqlite:///file.db` or `mysql://user@host:port/`, with percent-encoding for special"
        " characters. Store the password in `password-file`.",
    )
    SINK_AWAY = (
        7002,
        "The downstream does not answer, or is locked.",
        "The Drainer retries for ten minutes, then exits with code 1, so that its supervisor"
        " restarts it. Nothing is lost.",
        "Check that the downstream runs, and find the owner of its locks.",
    )
    SINK_REFUSES = (
        7003,
        "The downstream permanently rejects a row or a statement.",
        _DRAINER_STOPS,
        "Repair the downstream and restart the Drainer. The message names the table, the row and"
        " the range of `commit_ts`. See [When a Drainer stops or skips"
        " changes](drainer/guide/when_it_stops.md).",
    )
    SINK_ROW_CONFLICT = (
        7004,
        "A row conflicts with another downstream row that has the same unique value.",
        _DRAINER_STOPS,
        "Compare the two rows that the error names. Either a row was written downstream by hand, or"
        " the downstream's collation treats two texts as equal.",
    )
    SINK_GRANT = (
        7005,
        "The Drainer's downstream account lacks a privilege.",
        _NOT_STARTED,
        "Grant the privilege that the hint names.",
    )
    SINK_COLLATION = (
        7006,
        "The downstream does not have a collation.",
        _DRAINER_STOPS,
        'Set `apply.collations = "map"` if the error offers it, or run another statement instead'
        " with `penstock drainer ddl replace`.",
    )
    SINK_PACKET = (
        7007,
        "A row is larger than the downstream's `max_allowed_packet`.",
        "The Drainer or the load stops before the row. The row is not truncated.",
        "Raise `max_allowed_packet` downstream, and restart.",
    )
    SINK_DDL_MOMENT = (
        7008,
        "The values of a DDL depend on a time or session that cannot be reproduced downstream.",
        _DRAINER_STOPS,
        "The DDL has not run downstream. Change the downstream so that it can run, or make the"
        " change by hand, following the hint. Then track the DDL.",
    )
    SINK_DDL_DOUBT = (
        7009,
        "It is unknown whether the downstream has already executed a DDL.",
        _DRAINER_STOPS,
        "Check the downstream. If the statement has not been executed, run it there by hand. Then"
        " track the DDL.",
    )
    SINK_COMMIT_DOUBT = (
        7010,
        "The downstream did not answer a commit.",
        "The Drainer determines the outcome from the checkpoint, and repeats only uncommitted"
        " changes.",
        "No action is required.",
    )
    CHECKPOINT_DAMAGED = (
        7101,
        "The checkpoint in the downstream cannot be read.",
        _NOT_STARTED,
        "Restore the `commitTS` up to which the downstream is certainly complete, from a backup or"
        " from the Drainer's log.",
    )
    CHECKPOINT_CLUSTER = (
        7102,
        "The downstream has a checkpoint of another cluster, but none of this cluster.",
        _NOT_STARTED,
        "Check `etcd-urls` and the address of the downstream. Two clusters that share a downstream"
        " must store their checkpoints in different places.",
    )
    CHECKPOINT_TAKEN = (
        7103,
        "Another Drainer writes to this downstream.",
        "This Drainer writes nothing more. It is on standby, or exits with code 2 if the other"
        " Drainer is not visible in etcd.",
        "Stop one of the two Drainers. No action is required if both use the same etcd and"
        " downstream: one of them becomes the standby automatically.",
    )
    CHECKPOINT_GONE = (
        7105,
        "The downstream has lost its checkpoint, or has an older checkpoint than before.",
        "The Drainer stops, or does not start. If it started here, changes would be missing or"
        " applied twice.",
        "Restore the state of the downstream. Or restore a copy, and start the Drainer with"
        " `initial-commit-ts`, the `commit_ts` up to which the copy is complete.",
    )
    OVERRIDES_CHANGED = (
        7104,
        "An operator changed DDL overrides while a Drainer was writing.",
        "The Drainer commits nothing until it has read the overrides again, which it does"
        " automatically.",
        "No action is required.",
    )
    SQLITE_DDL = (
        7201,
        "SQLite does not support the change that a DDL makes.",
        _DRAINER_STOPS,
        "Change the file by hand as the hint describes, then track the DDL.",
    )
    SQLITE_FILE = (
        7202,
        "The file of a SQLite downstream cannot be used.",
        _NOT_STARTED,
        "Check the path and the permissions, and check that the file is a SQLite database.",
    )

    # Binlog files, and restores from them.

    FILES_DAMAGED = (
        7301,
        "A binlog file, or its schema file, differs from the data that was written.",
        "The program that reads the file ends with this error. It never skips corrupted data.",
        "Restore the file from a copy. The error names the file and the offset. Without a copy,"
        " restore only the data before the corruption: give an earlier `commit_ts` as the end.",
    )
    FILES_SAVEPOINT = (
        7302,
        "The savepoint of binlog files is missing or corrupted.",
        "The Drainer does not start, or the restore ends. The files are not changed.",
        "Restore the previous savepoint, which records the end of the valid data in the files. Or"
        " use a separate directory for the Drainer.",
    )
    FILES_GAP = (
        7303,
        "Binlog files are missing between other files, or between the target and the first file.",
        "The Drainer does not start, or nothing is restored, because changes would be missing.",
        "Restore the missing files unchanged. Or start with a copy of the tables of a later"
        " `commit_ts`, which the error names.",
    )
    FILES_TIME_ZONE = (
        7304,
        "The files and the settings have different time zones for TIMESTAMP values.",
        "The Drainer does not start, or nothing is restored.",
        "Set the time zone of the files, or use another directory.",
    )
    FILES_UNUSABLE = (
        7305,
        "Binlog files cannot be written.",
        "The Drainer stops. Committed data is in the files, and the next start continues after it.",
        "Check the path, its permissions and its disk, then start the Drainer again.",
    )
    FILES_SCHEMA = (
        7306,
        "Binlog files contain rows of a table whose definition is missing.",
        "The restore ends at this place. The data that was restored before it is consistent.",
        "Set `schema-file` to a schema file from before the first file, or exclude the table with a"
        " filter.",
    )
    RESTORE_PLACE = (
        7307,
        "The start or end of a restore is out of range.",
        "Nothing is restored.",
        "Give an end between the position of the target and the end of the files, which the error"
        " names, or use another target.",
    )

    # Kafka.

    KAFKA_TOPIC = (
        7401,
        "A topic is missing, has lost messages, cannot be created, or has an invalid name.",
        _DRAINER_STOPS,
        "Create the topic, or let the Drainer create it (`create-topics`). If a topic has lost"
        " messages, restore it, or start with `initial-commit-ts` at the checkpoint. The error"
        " gives the cause.",
    )
    KAFKA_SIZE = (
        7402,
        "A row exceeds the message size limit, or a topic's limit is lower than required.",
        _DRAINER_STOPS,
        "Raise `max-message-bytes` in the sink's URL and `max.message.bytes` of the topic. Or"
        " choose with `oversize` how such rows are sent to readers.",
    )
    KAFKA_ACCOUNT = (
        7403,
        "Kafka rejects the account, or denies it a permission.",
        _DRAINER_STOPS,
        "Grant the permission that the error names. Check the password in `password-file`.",
    )
    KAFKA_TRANSACTIONS = (
        7404,
        "Kafka does not support transactions, or rejects the transaction timeout.",
        _DRAINER_STOPS,
        "Use a Kafka cluster that supports transactions, and a `transaction-timeout` that it"
        " allows. With `delivery=at-least-once` no transactions are needed, but readers may receive"
        " a batch twice.",
    )
    KAFKA_MESSAGE = (
        7405,
        "A topic rejects a message: the topic is compacted, and the message has no key.",
        _DRAINER_STOPS,
        "Give the table a primary key, use `partition=key`, or set the topic's `cleanup.policy` to"
        " `delete`.",
    )
    KAFKA_CLAIM_CHECK = (
        7406,
        "A row that is too large for its topic cannot be stored in `claim-check-dir`.",
        _DRAINER_STOPS,
        "Check that the directory exists, is mounted, and is writable for the Drainer. The next"
        " start sends the batch again.",
    )

    # Delta Lake.

    DELTA_TABLE = (
        7501,
        "The contents of a Delta table were not written by this cluster.",
        _DRAINER_STOPS,
        "Restore the table to the version that the Drainer knows (Delta's RESTORE), or use another"
        " directory. The error names the table and both versions.",
    )
    DELTA_DDL = (
        7502,
        "A DDL cannot be applied to a Delta table.",
        _DRAINER_STOPS,
        "Change the Delta table by hand as the hint describes, then track the DDL.",
    )
    DELTA_UNUSABLE = (
        7503,
        "The directory of a Delta lake cannot be read or written.",
        "The Drainer stops. Committed data is in the tables, and the next start continues after"
        " it.",
        "Check the path, its permissions and its disk, then start the Drainer again.",
    )
    DELTA_VALUE = (
        7504,
        "A row has a value that a Delta lake cannot represent, and NULL cannot replace it.",
        _DRAINER_STOPS,
        "Change the row upstream, or exclude its table or skip its transaction.",
    )
    DELTA_MODE = (
        7505,
        "The configured mode differs from the mode in which a Delta lake was created.",
        _NOT_STARTED,
        "Set the mode that the error names in the sink's URL, because a mirror and a change log"
        " have different tables. Or use another directory, starting at a commit_ts that the Pumps"
        " still have.",
    )

    # A MySQL or MariaDB server.

    SERVER_URL = (
        8001,
        "The address of a server is invalid.",
        _NOT_STARTED,
        "Write `mysql://user@host:port/`, with percent-encoding for special characters.",
    )
    SERVER_AWAY = (
        8002,
        "The server does not answer, or the connection was lost.",
        _AGAIN,
        "Check the server and the network.",
    )
    SERVER_REFUSES = (
        8003,
        "The server reports an error.",
        "A command exits with code 2. A source shows `failed`, and waits for an operator.",
        "Look up the server's error and its number, which are part of the message.",
    )
    SERVER_GRANT = (
        8004,
        "The account on the server lacks a privilege.",
        "A command exits with code 2. A source shows `failed`, and waits for an operator.",
        "Grant the privilege that the hint names. `penstock source check` tests all required"
        " privileges.",
    )
    SERVER_SETTING = (
        8005,
        "A setting of the server makes replication impossible.",
        "The source does not start.",
        "Change the setting as the hint describes. `penstock source check` shows all such"
        " settings.",
    )
    SERVER_ID_TAKEN = (
        8006,
        "Another replica of the server uses this server id.",
        "The source retries. The server keeps only one of the two connections.",
        "Give the source another server id.",
    )
    SERVER_PURGED = (
        8007,
        "The server has deleted binlogs that are still needed.",
        "The source shows `failed`. Nothing is skipped.",
        "Stop the source and reload all tables (`penstock source reload --all`). To prevent the"
        " error, raise the server's `binlog_expire_logs_seconds`, or enable the source's relay"
        " log.",
    )
    SERVER_POSITION_LOST = (
        8008,
        "The server's binlog does not contain the source's position.",
        "The source shows `failed`. Nothing is skipped.",
        "The server was reset or restored, or is another server. Stop the source and reload all"
        " tables (`penstock source reload --all`).",
    )
    SERVER_OTHER = (
        8009,
        "The address leads to another server than before.",
        "The source stops before it reads anything from the new server.",
        "With GTIDs on all servers the source continues automatically at a new primary that has all"
        " transactions. Otherwise stop the source and reload all tables (`penstock source reload"
        " --all`).",
    )
    SERVER_RESET = (
        8010,
        "The server was reset, and its binlog does not continue from the checkpoint.",
        "The source shows `failed` and names both histories. Nothing is skipped.",
        "Stop the source and reload all tables (`penstock source reload --all`). Or follow the"
        " server's current history from its start (`penstock source continue --accept-gap`), and"
        " reload the tables that differ.",
    )
    SERVER_STREAM = (
        8011,
        "Packets of the server's stream are lost or out of order.",
        "The source drops the connection and requests the same place again.",
        "If the error persists, look for a proxy on the path that does not support replication.",
    )
    ENGINE_WITHOUT_TRANSACTIONS = (
        8012,
        "Replicated tables use a storage engine without transactions.",
        "The load does not start, or the source stops, because the state of such rows is unknown.",
        "Run ALTER TABLE … ENGINE = InnoDB, or exclude these tables with filters.",
    )
    LETTER_CASE = (
        8013,
        "Two names differ only in letter case, which is not significant here.",
        "No change of the second table is replicated.",
        "Rename one of the two on the server, route it to another name, or exclude it.",
    )
    FOREIGN_KEY_ACTIONS = (
        8014,
        "Foreign keys change rows of child tables, which the server's binlog does not record.",
        _SOURCE_STOPS,
        "Change the foreign keys as the hint describes, or accept them with the setting"
        " `cascades`.",
    )

    # The binlog of a MySQL or MariaDB server.

    EVENT_UNKNOWN = (
        8101,
        "The server's binlog contains an unknown event or format.",
        _SOURCE_STOPS,
        "Check whether a newer version of Penstock supports it. The error names the place.",
    )
    EVENT_MALFORMED = (
        8102,
        "An event of the server's binlog is corrupted.",
        _SOURCE_STOPS,
        "Check the server's file with `mysqlbinlog --verify-binlog-checksum`. If it is intact, the"
        " relay log is corrupted: follow the hint.",
    )
    ROWS_EVENT = (
        8103,
        "The rows of an event, or of a table that is loaded, cannot be read.",
        _SOURCE_STOPS,
        "If the table has old column types, run ALTER TABLE … FORCE on the server. The error names"
        " the table and the place.",
    )
    BINLOG_METADATA = (
        8104,
        "The server's binlog lacks metadata that is required to read a column.",
        _SOURCE_STOPS,
        "Set `binlog_row_metadata = FULL` on the server, and let its clients reconnect. Binlogs"
        " that were written before remain without the metadata.",
    )
    BINLOG_ROW_IMAGE = (
        8105,
        "The server's binlog contains only some of the columns of a row.",
        _SOURCE_STOPS,
        "Set `binlog_row_image = FULL` on the server, and let its clients reconnect. Reload the"
        " table to get the changes that were written before.",
    )
    BINLOG_STATEMENT_FORMAT = (
        8106,
        "The server's binlog records a change of rows as a statement.",
        _SOURCE_STOPS,
        "Set `binlog_format = ROW` on the server, and let its clients reconnect. `skip` the"
        " statement, then `reload` the replicated tables that it changed.",
    )
    BINLOG_INCIDENT = (
        8107,
        "The server reports that changes are missing in its binlog.",
        _SOURCE_STOPS,
        "Compare the tables, reload them, and start after this place.",
    )
    XA_PREPARED = (
        8108,
        "A prepared XA transaction exceeds the age or size that can be kept.",
        _SOURCE_STOPS,
        "End the transactions that `XA RECOVER` lists on the server.",
    )
    GTID_MALFORMED = (
        8109,
        "A value is not a valid GTID or GTID set.",
        "Replication does not start at this position.",
        "Write the GTIDs as the server does: `SELECT @@gtid_executed` or `@@gtid_binlog_pos`.",
    )
    STATEMENT_UNREADABLE = (
        8110,
        "A statement has another meaning under its session's settings, or cannot be parsed.",
        _SOURCE_STOPS,
        "Give a replacement statement, or skip the statement. The status shows the command.",
    )
    ONLINE_DDL = (
        8111,
        "The tables of an online schema change (gh-ost, pt-osc) cannot be tracked.",
        _SOURCE_STOPS,
        "Run the tool again from the start, or give the statement by hand.",
    )
    TABLE_DIFFERS = (
        8112,
        "The definitions of a table on the server and in Penstock differ.",
        _SOURCE_STOPS,
        "Alter one of the two so that they agree. Compare SHOW CREATE TABLE.",
    )
    LEFT_OUT_COPIED = (
        8113,
        "A statement copies the definition of a table that a filter excludes.",
        _SOURCE_STOPS,
        "Replace it with a CREATE TABLE with all columns, or also exclude the new table.",
    )

    # The relay log of a source.

    RELAY_INDEX = (
        8201,
        "The index, a file name or the state file of a source's relay log is invalid.",
        "The source does not start, or shows `failed`.",
        "Move foreign files out of the relay log's directory. Only the source may write in it.",
    )
    RELAY_GONE = (
        8202,
        "A file of a source's relay log is missing or shorter than before.",
        "The source shows `failed`. Nothing is skipped.",
        "Restore the file, or move the relay log away: the source then resumes from its checkpoint,"
        " if the server still has the binlog from there on.",
    )
    RELAY_DAMAGED = (
        8203,
        "A file of a source's relay log is corrupted.",
        "The source shows `failed`. Nothing is skipped.",
        "Move the relay log away: the source then resumes from its checkpoint, if the server still"
        " has the binlog from there on. Then check the disk.",
    )
    RELAY_UNUSABLE = (
        8204,
        "A source's relay log cannot be opened.",
        "The source shows `failed`. Nothing is skipped.",
        "Follow the hint. The message gives the reason.",
    )

    # The initial load.

    LOAD_DISTURBED = (
        8301,
        "A load was interrupted.",
        "The load restarts for the unfinished tables. Finished tables remain.",
        "No action is required. If the error recurs, avoid DDL until the load has finished.",
    )
    LOAD_OF_OTHER = (
        8302,
        "A load was started by another source, or was interrupted among tables that others share.",
        "Nothing is loaded.",
        "Remove `load.json` and the targets that the message names, and load again.",
    )
    LOAD_XA = (
        8303,
        "Prepared XA transactions exist when a load starts.",
        _AGAIN,
        "End the transactions that `XA RECOVER` lists on the server.",
    )
    LOAD_NO_TABLES = (
        8304,
        "The Drainer has not created the target tables of a load.",
        "The load waits for the tables for some time, then ends.",
        "Check that the Drainer runs, that this is its downstream, and that its filters and routes"
        " match those that the load expects.",
    )
    LOAD_REFUSED = (
        8305,
        "The downstream rejects rows of a load.",
        "The load stops. It continues when it is run again.",
        "Compare the table with the source's table, and make sure that no other program writes"
        " there.",
    )
    LOAD_STATEMENT = (
        8306,
        "A statement arrived while only some of the tables that it concerns were loaded.",
        "The load stops.",
        "Run the load again from the start, and avoid such statements while it runs.",
    )
    LOAD_TARGET = (
        8307,
        "A target table of a load already exists, and was not created by this load.",
        "Nothing is loaded into the table.",
        "Drop the table, exclude it with the filters, or load into it with `into-existing`.",
    )
    LOAD_STATE = (
        8308,
        "The state file of a load cannot be read.",
        "The load does not continue.",
        "Use the version that wrote the file. Or remove the file and the targets, and load again.",
    )

    # The state of a source.

    SOURCE_TAKEN = (
        8401,
        "Another process runs this source.",
        "This process writes nothing. A source that died is released after some seconds.",
        "Run one process for each `source-id`. A second process waits for the first.",
    )
    SOURCE_START = (
        8402,
        "The start position of a source is invalid.",
        "The source does not start.",
        "Write the position as the hint describes: a file and position, GTIDs, or a time.",
    )
    SOURCE_FILES = (
        8403,
        "A file of a source cannot be written.",
        "The source stops or waits. Committed data remains.",
        "Free space on its disk, and check that the source's account may write there.",
    )
    SOURCE_STATE_DAMAGED = (
        8404,
        "The journal of a source is corrupted, or the extent of its load is no longer known.",
        "The source does not start.",
        "Check the disk, or restore the file. The journal records the transactions whose commit was"
        " in progress: before you remove it, compare the tables with `penstock verify`. To restore"
        " the extent of a load, run `penstock source reload --all`.",
    )
    RELOAD_WAITS = (
        8405,
        "A table is to be reloaded, and another table is routed to the same target.",
        "The reload waits until the source has caught up.",
        "If the error persists, request the reload again.",
    )

    # A TiDB as the upstream.

    TIKV_AWAY = (
        9001,
        "No TiKV answers a request about a transaction.",
        "The Prewrite stays open and blocks the merge. The Pump retries.",
        "Check that TiKV and PD run, and that the Pump can reach them.",
    )
    TIKV_ANSWER = (
        9002,
        "TiKV's answer about a transaction cannot be interpreted.",
        "The Prewrite stays open and blocks the merge. The Pump does not guess the outcome.",
        "Read the log of the TiKV. A newer TiKV may require a newer Pump.",
    )
    TIDB_AWAY = (
        9003,
        "No status port of a TiDB answers.",
        "The Drainer waits before the DDL and retries.",
        "Check that a TiDB runs, that `etcd-urls` names its PD, and that the Drainer can reach the"
        " TiDB's status port.",
    )
    TIDB_STATUS_PORT = (
        9004,
        "The answer of a TiDB's status port is not a DDL history.",
        _DRAINER_STOPS,
        "Check that this is a TiDB's status port. Check the `[status]` settings and the log of the"
        " TiDB.",
    )
    TIDB_DDL_WAITS = (
        9005,
        "A DDL of the TiDB is in progress while a Drainer starts without a checkpoint.",
        "The Drainer waits until the DDL has finished.",
        "Usually no action is required. If the DDL was cancelled midway, run any further DDL, for"
        " example CREATE DATABASE, to end the wait.",
    )
    TIDB_AND_OTHERS = (
        9006,
        "A TiDB and other writers are configured to write into the same cluster.",
        _NOT_STARTED,
        "Use a separate cluster for the other writers: the schemas of a stream must come from a"
        " single source.",
    )
    TIDB_JOB = (
        9007,
        "A statement names a job of the TiDB, but job ids differ downstream.",
        _DRAINER_STOPS,
        "Restore the table downstream by hand to its upstream state, then track the DDL.",
    )


SUBJECTS: Final = {
    1: "Programs, settings and commands",
    2: "Etcd, nodes and time",
    3: "A Pump and its disk",
    4: "Binlogs, rows and writers",
    5: "DDL and the schema",
    6: "The Drainer and Spark",
    7: "The downstream",
    8: "A MySQL or MariaDB as the upstream",
    9: "A TiDB as the upstream",
}
"""The subject of a code, by the first of its four digits."""

_SHOWN = re.compile(r"\[(PS-\d{4})\]")
_BY_NAME: Final = {str(code): code for code in Code}


def code_named(name: str) -> Code | None:
    """Return the code with a name such as PS-1001; None if this version does not know it."""
    return _BY_NAME.get(name)


def code_in(text: str) -> Code | None:
    """Return the last code in a text, for example [PS-1001]; None if no known code is shown."""
    found = _SHOWN.findall(text)
    return code_named(found[-1]) if found else None

"""Codes: what an operator can meet, each under a number that never changes its meaning.

Every error names one (`penstock.errors`), and whatever shows the error to a person shows the code
once, at the end: `[PS-1001]`. Raise sites share a code where cause and remedy are the same for an
operator. `deploy/error_pages.py` makes a page of the documentation of each subject.

A number is never given to something else: `tests/unit/penstock/codes.txt` records all that there
have been, and a code that is no longer needed stays in that list. A new one takes the next free
number of its subject:

    1xxx  programs, settings, commands     6xxx  the Drainer and Spark
    2xxx  etcd, nodes, time                7xxx  the downstream
    3xxx  a Pump and its disk              8xxx  a MySQL or MariaDB as the upstream
    4xxx  binlogs, rows, writers           9xxx  a TiDB as the upstream
    5xxx  DDL and the schema

The module is long because it is one table; it holds nothing else.
"""

from __future__ import annotations

import re
from enum import Enum, unique
from typing import Final

_NOT_STARTED: Final = "The program does not start, and ends with exit code 2. Nothing has changed."
_NOT_DONE: Final = "The command ends with this error. Nothing has changed."
_AGAIN: Final = "It is tried again until it works. Nothing is lost, and nothing is left out."
_CALLER: Final = "The call raises the error, and nothing of it is stored."
_CALLER_READS: Final = "The call raises the error. The Pumps keep what the reader has not had."
_DRAINER_STOPS: Final = (
    "The Drainer stops before it with exit code 2, and applies nothing that comes after it. The"
    " Pumps keep what it has not pulled."
)
_SOURCE_STOPS: Final = (
    "The source stops before this place and shows `failed` in its status, with the overrides that"
    " are possible. Its relay log continues to fill."
)
_FOLLOWER_STOPS: Final = (
    "A program that runs the statement gets the error, and the statement is not run. A source or a"
    " Drainer that meets it in its stream stops before it, and applies nothing that comes after it."
)
_PUMP_STOPS: Final = (
    "The Pump does not start, or stops with an error. It never skips a damaged place: Drainers wait"
    " at the last binlog before it."
)


@unique
class Code(Enum):
    """What an error is about: its number, what it means, what happens meanwhile, what to do."""

    def __init__(self, number: int, meaning: str, meanwhile: str, remedy: str) -> None:
        self.number = number
        self.meaning = meaning
        self.meanwhile = meanwhile
        self.remedy = remedy

    def __str__(self) -> str:
        """Return how people see it: PS-1001."""
        return f"PS-{self.number}"

    # Programs and their settings.

    SETTING_UNKNOWN = (
        1001,
        "A setting, a variable or a key of the settings file is not known.",
        _NOT_STARTED,
        "Correct the name; the error names the one that comes nearest. A key of another program"
        " does not belong into this file.",
    )
    SETTING_VALUE = (
        1002,
        "A setting has a value that it cannot take.",
        _NOT_STARTED,
        "The error says which values the setting takes. Units are in its name: `_s` is seconds,"
        " `_bytes` is bytes.",
    )
    SETTING_MISSING = (
        1003,
        "A setting that has no default is not set.",
        _NOT_STARTED,
        "Set it as a flag, as a variable or in the settings file.",
    )
    SETTINGS_CONTRADICT = (
        1004,
        "Two settings contradict each other, or one is given twice.",
        _NOT_STARTED,
        "Leave one of the two out. Which one is wanted only you can know, so none is preferred.",
    )
    SETTINGS_FILE = (
        1005,
        "The settings file cannot be read, or is not TOML.",
        _NOT_STARTED,
        "Check the path of `--config` and who may read it; `penstock init DIR` writes samples.",
    )
    SETTING_UNSUPPORTED = (
        1006,
        "A setting of TiDB-Binlog has no counterpart here.",
        _NOT_STARTED,
        "Remove it, and do what the hint names instead. Settings that can be taken over are taken"
        " over; one that would change what is replicated is never dropped silently.",
    )
    LOG_FILE = (
        1007,
        "The log file cannot be opened.",
        "A program does not start without it. A node that runs keeps the file that it has open.",
        "Let the account that runs the node write there, or name another file.",
    )
    ADDRESS_TAKEN = (
        1008,
        "The node cannot listen on an address that it was given.",
        _NOT_STARTED,
        "Look for the process that has the port (`ss -ltnp`), which may be an older run of the same"
        " node. Or give the node another address.",
    )
    PACKAGE_MISSING = (
        1009,
        "A Python package that this role needs is not installed, or cannot be loaded.",
        _NOT_STARTED,
        "Install the extra that the line names, into the same virtual environment.",
    )
    PATH_UNUSABLE = (
        1010,
        "The operating system refuses the use of a file or folder.",
        "The program ends with exit code 2, or 1 if a disk is full: a supervisor starts it again"
        " then. All data acknowledged before is on disk.",
        "The line names the path and the reason: mostly rights, a full disk, or a path that is not"
        " there.",
    )
    PROGRAM_MISSING = (
        1011,
        "A program beside Python is missing, which the demo or a test starts.",
        _NOT_DONE,
        "Run the command that the hint names. A clone gets all of them by `make setup`.",
    )
    CHILD_FAILED = (
        1012,
        "A server that the demo started as a child failed.",
        "The demo ends, and stops the other servers that it started.",
        "The lines of the server's own log are part of the error. Mostly it is memory, disk or a"
        " port.",
    )
    FOLDER_EXISTS = (
        1013,
        "`penstock init` found a file where it would write one.",
        "Nothing is written; no file is ever overwritten.",
        "Name a new folder, and take over from it by hand what you want.",
    )
    CLOSED = (
        1014,
        "What was asked is closing or closed already.",
        "The call ends without an effect. This is normal while a program stops.",
        "A program of yours that sees this used a client after `close()`: connect again. In a"
        " node's log nothing is to be done.",
    )
    DEFECT = (
        1015,
        "A defect of Penstock: one of its own promises does not hold.",
        "The node stops with exit code 1 before it can do harm; the checkpoint stands before what"
        " was under way.",
        "Please report it with the traceback and the log from the node's last start on. A restart"
        " is safe: it begins at the checkpoint.",
    )
    ASSERTIONS_OFF = (
        1016,
        "The node was started by `python -O`, which switches off the checks that guard the data.",
        _NOT_STARTED,
        "Start it without `-O`, and without the variable PYTHONOPTIMIZE.",
    )

    # Filters and routes.

    FILTER_RULE = (
        1101,
        "An event rule cannot be used.",
        _NOT_STARTED,
        "The error names the rule by its number in the file and says what is wrong with it.",
    )
    FILTER_PATTERN = (
        1102,
        "A pattern of names is none, or can match nothing.",
        _NOT_STARTED,
        "In a pattern `*` stands at its end only; after a `~` it is a regular expression. See"
        " [Filters and other names](drainer/guide/filters_and_routes.md).",
    )
    ROUTE_RULE = (
        1103,
        "A route cannot be used.",
        _NOT_STARTED,
        "The error names the route and what it lacks. See"
        " [Filters and other names](drainer/guide/filters_and_routes.md).",
    )
    ROUTE_AMBIGUOUS = (
        1104,
        "Two routes match one table, and neither is more specific.",
        "Nothing of the table is applied: which name is meant is not guessed.",
        "Change the patterns so that one route matches, or one of them names the table exactly.",
    )
    FILTER_EXPRESSION = (
        1105,
        "The expression of a row filter cannot be read, or does not fit its table.",
        "The program does not start; one that runs stops at the DDL after which the expression no"
        " longer fits the table.",
        "Correct the expression. See [Filters and other"
        " names](drainer/guide/filters_and_routes.md) for what it may hold.",
    )
    FILTER_STOPS = (
        1106,
        "An event rule with the action `Error` has met what it is to stop at.",
        _DRAINER_STOPS,
        "This is what the rule asks for. Decide what shall happen to the event, change the rule,"
        " and start the node again.",
    )
    DDL_PARTLY_FILTERED = (
        1107,
        "One DDL concerns tables that are replicated and others that are left out.",
        "The node stops before the statement; it is neither run as a whole nor cut.",
        "Run the part that is about replicated tables downstream by hand, then let the DDL be"
        " tracked: `drainer ddl track`, or for a source `mysql-source` with the override that its"
        " status shows. See [When it stops](drainer/guide/when_it_stops.md).",
    )
    SHARDS_DIFFER = (
        1108,
        "Several tables are replicated into one, and their definitions do not fit together.",
        "The node stops before the DDL, or before the load of that table.",
        "Make the tables alike upstream, or change the downstream's table by hand so that it takes"
        " the rows of all, and let the DDL be tracked.",
    )
    ROUTE_COLUMN = (
        1109,
        "A route adds a column for the origin of a row, and rows have a column of that name.",
        "The node stops before the first row of the table: no value is overwritten.",
        "Name another `target-column` in the route.",
    )

    # TLS and passwords.

    TLS_FILES = (
        1201,
        "The PEM files of TLS cannot be used: unreadable, encrypted, or not made for each other.",
        "A program does not start. A node that runs keeps the files that it read last.",
        "Check `ssl-ca`, `ssl-cert` and `ssl-key`: who may read them, and that certificate and key"
        " belong together. See [TLS](deploy/README.md#tls).",
    )
    TLS_NOT_TRUSTED = (
        1202,
        "A certificate is not trusted: another CA, another host name, or expired.",
        "No connection is made. A program ends at its start; a node that runs tries again, since"
        " certificates are renewed without a restart.",
        "Renew the certificate, or give the CA that signed it. The error names the file and the"
        " address. See [TLS](deploy/README.md#tls).",
    )
    TLS_REFUSED = (
        1203,
        "The other side refuses our certificate.",
        "No connection is made. A program ends at its start; a node that runs tries again.",
        "Show a certificate that the other side's CA has signed and whose common name its"
        " `cert-allowed-cn` lists.",
    )
    TLS_MISMATCH = (
        1204,
        "One side speaks TLS and the other one does not.",
        "No connection is made.",
        "Switch TLS on at both sides, or off. All nodes of a cluster have it, or none.",
    )
    PASSWORD_FILE = (
        1205,
        "A `password-file` is empty or cannot be read.",
        "No connection to that database is made. The file is read again for each connection.",
        "Write the password into it, and let the account of the node read it.",
    )
    PASSWORD_ENCRYPTED = (
        1206,
        "An encrypted password cannot be decrypted.",
        _NOT_STARTED,
        "Set the variable with the key as where the password was encrypted, or use a"
        " `password-file` instead.",
    )

    # Commands.

    COMMAND_UNKNOWN = (
        1301,
        "There is no such program, command, action or flag.",
        _NOT_DONE,
        "The error lists those that there are; `--help` says what each does.",
    )
    COMMAND_ARGUMENT = (
        1302,
        "An argument of a command is missing, or cannot be used.",
        _NOT_DONE,
        "Give it as the hint says; `--help` of the command has all arguments.",
    )
    NODE_UNKNOWN = (
        1303,
        "No node of this name is registered in etcd.",
        _NOT_DONE,
        "The error lists the names that are known. Is `--etcd-urls` that of the right cluster?",
    )
    NODE_AWAY = (
        1304,
        "A node does not answer.",
        _NOT_DONE,
        "Start the node if it does not run. If it runs, look whether its address in etcd is one"
        " that can be reached from here.",
    )
    NODE_STATE = (
        1305,
        "A node is in a state in which this cannot be done, or need not be.",
        _NOT_DONE,
        "The error names the state. Ask for the node's status, and try again when it has changed.",
    )
    NODE_OTHER = (
        1306,
        "At this address another node, or another kind of program, answers.",
        _NOT_DONE,
        "The address in etcd is old, or another program has the port now: list the nodes again.",
    )
    NODE_REFUSES = (
        1307,
        "A node refuses what it is asked, for a reason of its own.",
        _NOT_DONE,
        "The node's answer is part of the line, and its log says more.",
    )
    NODE_ALIVE = (
        1308,
        "The command is for dead nodes, and this one is or may be alive.",
        "Nothing has changed: a node that lives would lose binlogs by it.",
        "Stop the node, or wait until its heartbeats have stopped for some seconds. Make sure that"
        " no frozen process of it is left.",
    )
    NODE_HOLDS_BINLOGS = (
        1309,
        "A Pump that is to go offline has, or may have, binlogs that are nowhere else.",
        "The Pump stays as it is. No binlog is lost.",
        "Start the Pump and the Drainers that the error names: it hands them over. What to do if"
        " its disk is gone for good is in [When it stops](drainer/guide/when_it_stops.md).",
    )
    LOSS_TOO_LARGE = (
        1310,
        "What is to be declared lost is not what can be declared.",
        _NOT_DONE,
        "First wait until the Drainers have what they can get. A declaration can be widened, never"
        " taken back: `lost-pump` shows what each Drainer would lose before you confirm it.",
    )
    NOT_CONFIRMED = (
        1311,
        "A command that gives up binlogs for good has not been confirmed.",
        _NOT_DONE,
        "Read what the command prints about the loss. If that is wanted, call it with `--confirm`.",
    )
    WAIT_ENDED = (
        1312,
        "A command's `--timeout` is over before the node has come to the state that was asked for.",
        "The node continues by itself; only the command has ended, with exit code 1.",
        "Ask for the status of the node, which says what it waits for.",
    )
    NO_LOG_HERE = (
        1313,
        "There is no log of a Pump in this place.",
        _NOT_DONE,
        "Name the `data-dir` of a Pump, or one of the `.seg` files in it.",
    )
    OVERRIDE_TOO_LATE = (
        1314,
        "An override comes too late: its DDL or its place is done already.",
        _NOT_DONE,
        "What was followed stays as it is. `drainer ddl list` and `mysql-source status` show what"
        " was done, and what can still be taken back.",
    )
    OVERRIDE_UNKNOWN = (
        1315,
        "There is nothing that this override could be about.",
        _NOT_DONE,
        "`drainer ddl list` shows the DDL with their `commit_ts`; `mysql-source status` shows the"
        " places and tables.",
    )
    DRAINER_BUSY = (
        1316,
        "A Drainer is doing just now what the command would change.",
        _NOT_DONE,
        "Wait for the end of the DDL, or stop the Drainer and its standbys first.",
    )
    GAP_NOT_ACCEPTED = (
        1317,
        "Following a table again, or loading it again, would leave a gap downstream for a time.",
        _NOT_DONE,
        "Load the table again, or confirm with `--accept-gap` and repair with"
        " `penstock verify --repair`; the line says what would be missing.",
    )
    DRAINER_NEEDED = (
        1318,
        "A Drainer that runs cannot be skipped: it would lose binlogs.",
        _NOT_DONE,
        "Let the Drainer catch up, or take it offline by `penstock ctl offline-drainer`.",
    )

    CONSOLE_TOKEN = (
        1319,
        "The token of a console is no text, is too short, or would travel in plain sight.",
        "The console does not start, and ends with exit code 2.",
        "Make one by `openssl rand -hex 24`. Elsewhere than on 127.0.0.1 a console with a token"
        " needs TLS.",
    )

    # Etcd and the nodes of a cluster.

    ETCD_AWAY = (
        2001,
        "Etcd does not answer.",
        "Nodes that run continue with what they know and try again. What needs etcd waits: a start,"
        " a DDL, new timestamps when the oracle's window ends. Nothing is lost.",
        "Look at etcd, and whether this machine reaches it at the addresses that the error names.",
    )
    ETCD_REFUSES = (
        2002,
        "Etcd refuses the access.",
        "A program does not start; a node that runs tries again.",
        "Check the users and roles of etcd, and the certificates in `etcd-ssl-…`.",
    )
    ETCD_VALUE = (
        2003,
        "A key in etcd holds what no node of Penstock wrote.",
        "What depends on the key stops; the key is never overwritten.",
        "Correct or delete the key as the hint says. Find out who wrote it: it may be another"
        " cluster or program in the same etcd.",
    )
    CLUSTER_MISMATCH = (
        2004,
        "Something belongs to another cluster: a data folder, a writer, a Pump or a relay log.",
        "It is refused, before it writes anything.",
        "Check `etcd-urls` and `data-dir`. If etcd was lost and set up again, restore its snapshot,"
        " or put the cluster's id back before any node starts.",
    )
    NODE_ID_TAKEN = (
        2005,
        "Another process has this node id.",
        "This process does not become a node; the other one is not disturbed.",
        "Stop the other one, or give this one another `--node-id` and a data folder of its own.",
    )
    DATA_DIR_OTHER = (
        2006,
        "The data folder belongs to another node.",
        _NOT_STARTED,
        "Leave `--node-id` away, so that the folder's name holds, or use another folder. Never"
        " rename a node by editing its folder.",
    )
    DATA_DIR_IN_USE = (
        2007,
        "Another process has this data folder open.",
        _NOT_STARTED,
        "Stop the other process, or use another folder.",
    )
    DATA_OF_TIDB_BINLOG = (
        2008,
        "The folder holds binlogs of a Pump of TiDB-Binlog.",
        _NOT_STARTED,
        "Use an empty folder and another node id, and let the old Pump hand over what it holds. See"
        " [From TiDB-Binlog](drainer/guide/from_tidb_binlog.md).",
    )
    PUMP_LOST = (
        2009,
        "This Pump was declared lost, and Drainers have continued without it.",
        _NOT_STARTED,
        "Start a new Pump with an empty folder and another node id. `penstock ctl dump` reads the"
        " log of the old one.",
    )
    LOST_BINLOGS_NEEDED = (
        2010,
        "A Drainer needs binlogs of a Pump that was declared lost.",
        _DRAINER_STOPS,
        "Best restore the downstream from a backup that has them. Or declare them lost, too, with"
        " `lost-pump --accept-loss-after` at a lower timestamp: they are then lost downstream.",
    )
    DRAINER_NOT_NOTIFIED = (
        2011,
        "A Pump that starts cannot notify a Drainer that is alive.",
        "The Pump waits before it takes its first transaction, since that Drainer would miss it.",
        "See that the Drainer's address in etcd can be reached from the Pump, and look at its"
        " log. A dead Drainer is skipped once no heartbeat of it has come for ten seconds.",
    )

    # Time.

    ORACLE_AWAY = (
        2101,
        "The oracle, which hands out timestamps, does not answer.",
        _AGAIN,
        "The oracle is one of the Pumps, or a PD: see that it runs and can be reached. Another Pump"
        " takes over by itself within seconds.",
    )
    ORACLE_NONE = (
        2102,
        "No Pump is elected to hand out timestamps.",
        "Writers wait and try again; nothing commits meanwhile.",
        "Start a Pump. If Pumps run, an election is under way: seconds. If it stays, look at etcd.",
    )
    ORACLE_MOVED = (
        2103,
        "This Pump does not hand out the timestamps any more; another one does.",
        "Clients ask the new one by themselves.",
        "Nothing is to be done. If it happens again and again, etcd or the Pumps are too slow for"
        " their leases.",
    )
    PD_AWAY = (
        2104,
        "No PD answers.",
        _AGAIN,
        "See that PD runs at `pd-address` and can be reached from this machine.",
    )
    PD_CLUSTER = (
        2105,
        "PD and etcd are of different clusters.",
        "The node does not start, or stops before it takes a timestamp of the other cluster.",
        "Check `etcd-urls` and `pd-address`. The timestamps of a cluster must have one source.",
    )

    # The lock and the history of DDL.

    LEASE_LOST = (
        2201,
        "The lease ran out by which a writer proves that it knows the newest schema.",
        "The writer commits nothing until it has a new lease; what was not committed is rolled"
        " back.",
        "Run the transaction again. If it happens often, etcd is slow, or the process was stopped"
        " for seconds.",
    )
    DDL_LOCKED = (
        2202,
        "Another DDL is under way.",
        "The DDL has not begun.",
        "Try again when the other one is done; the error names who runs it.",
    )
    DDL_LOCK_LOST = (
        2203,
        "A writer lost the lock of DDL before its statement was recorded.",
        "The statement did not happen.",
        "Run it again. If it happens often, etcd is slow.",
    )
    DDL_WRITERS_LATE = (
        2204,
        "Some writers still have transactions open under the old schema.",
        "The DDL did not happen. Writers are not disturbed.",
        "Try again. The error names the writers: look there for transactions that take long.",
    )
    DDL_HISTORY = (
        2205,
        "The history of DDL in etcd is incomplete, was changed, or does not fit the checkpoint.",
        _DRAINER_STOPS,
        "Restore `/penstock/v1/ddl` of etcd from a snapshot. Without one, begin with a fresh copy"
        " of the data and `initial-commit-ts` after the missing DDL. Writers continue once"
        " `penstock ctl lost-ddl` has given up the DDL that their error names.",
    )

    # A Pump's log on disk.

    SEGMENT_DAMAGED = (
        3001,
        "Bytes of a Pump's log are not those that were written.",
        "Where another disk has a copy of the log they are put back from there, and all continues."
        f" Otherwise: {_PUMP_STOPS[0].lower()}{_PUMP_STOPS[1:]}",
        "Nothing, where the message says that they were put back, but to look at the disk."
        " Otherwise start the other Pumps that have a copy of the log. If there are none, stop the"
        " Pump and copy its folder first. `penstock ctl dump DIR --summary` shows what can be read."
        " Put the file back from a backup if there is one; check the disk. What to do if there is"
        " none is in [When it stops](drainer/guide/when_it_stops.md).",
    )
    SEGMENT_CUT_SHORT = (
        3002,
        "A file of a Pump's log is shorter than it was, or gone.",
        "Where another disk has a copy of the log the file is fetched from there, except for the"
        f" last one of a log. Otherwise: {_PUMP_STOPS[0].lower()}{_PUMP_STOPS[1:]}",
        "Start the other Pumps that have a copy of the log. If there are none, put the file back"
        " from a backup. A file system that loses what was synced must not hold a Pump; look at its"
        " mount options and at the kernel's log.",
    )
    SEGMENTS_MISSING = (
        3003,
        "Files in the middle of a Pump's log are missing.",
        _PUMP_STOPS,
        "First start the other Pumps that have a copy of the log, or restore the files. Only if no"
        " disk has them: `accept-loss-up-to-ts` in `[storage]` abandons what was in and before"
        " them. It is lost then, and Drainers whose checkpoint is below are refused.",
    )
    SEGMENT_VERSION = (
        3004,
        "A file of a Pump's log was written by a newer version.",
        _NOT_STARTED,
        "Use the version that wrote it, or a newer one.",
    )
    LOG_WRITE_FAILED = (
        3005,
        "The disk did not take a write or a sync.",
        "What was being written is not acknowledged. After a failed sync the file is not used"
        " again, since nothing says what of it is on disk: the Pump continues in a new one.",
        "Look at the disk and at the kernel's log. Writers try another Pump by themselves.",
    )
    LOG_UNREADABLE = (
        3006,
        "The disk does not give a part of a Pump's log.",
        "Drainers wait at this place and ask again; nothing is skipped.",
        "Look at the disk and at the kernel's log; copy the folder to another disk while it can be"
        " read.",
    )
    INDEX_DAMAGED = (
        3007,
        "A Pump's index is damaged, or has another format.",
        "No binlog is lost. A Pump that starts deletes the index and builds it from the log; a Pump"
        " that runs cannot serve the damaged part.",
        "Restart a Pump that runs: it builds the index from the log. If the damage returns, check"
        " the disk.",
    )
    INDEX_AWAY = (
        3008,
        "The disk does not take or give a part of a Pump's index.",
        _AGAIN,
        "Look at the disk: space, rights, the kernel's log.",
    )
    DISK_FULL = (
        3009,
        "The volume of a Pump is down to the reserve that is kept free.",
        "The Pump takes no new transactions; Commits of open ones still fit. Writers try another"
        " Pump by themselves.",
        "Find out why it grows: purging waits for the slowest Drainer. Then shorten `gc-days`, give"
        " it a larger disk, or start another Pump. Never delete files of the log.",
    )

    # What a Pump refuses.

    TRANSACTIONS_OPEN = (
        3101,
        "As many transactions are open on a Pump as it can hold.",
        "The Pump takes no new transactions; those that are open may end.",
        "Find out why the oldest one does not end: mostly the resolver's database is away.",
    )
    PUMP_OVERLOADED = (
        3102,
        "More is waiting to be written than a Pump's queue may hold.",
        "The Pump refuses; writers try again or take another Pump.",
        "If it stays, the disk is too slow for the writers: look at `penstock_pump_fdatasync_"
        "seconds`, or start another Pump.",
    )
    PUMP_NOT_ONLINE = (
        3103,
        "A Pump that is not online takes no new transactions.",
        "Writers take another Pump. Commits of transactions that are open are still taken.",
        "Nothing, if it is stopping. Else look at the Pump's status for what it waits for.",
    )
    BINLOG_TOO_LARGE = (
        3104,
        "A transaction, or a binlog in one message, is larger than this Pump takes.",
        _CALLER,
        "Write smaller transactions, or raise `transaction-bytes-max` or `max-message-bytes` on all"
        " Pumps and Drainers.",
    )
    BINLOG_INVALID = (
        3105,
        "A writer sent what the protocol does not allow.",
        _CALLER,
        "The writer has a defect or speaks another version: the line says what was wrong.",
    )
    CONTRADICTION = (
        3106,
        "A binlog contradicts one that is stored: both cannot be true.",
        "The Pump refuses the second one, and keeps the first.",
        "The writer, or its clock, breaks the protocol. Look whether all writers have their"
        " timestamps from one oracle, and whether a restored copy of a writer runs.",
    )
    PREWRITE_MISSING = (
        3107,
        "A Commit came whose Prewrite is not on this Pump.",
        "The Pump refuses the Commit; the writer tries again.",
        "Seconds of it are normal after a restart. If it stays, was the data folder exchanged?",
    )
    BINLOG_PURGED = (
        3108,
        "A Drainer asks for binlogs that are purged.",
        "The Drainer stops with exit code 2; nothing is left out silently.",
        "Restore the downstream from a newer backup: the Drainer continues from its checkpoint. For"
        " the future raise `gc-days` to the longest time that a Drainer may be away.",
    )
    BINLOG_NOT_HERE = (
        3109,
        "A task asks a Pump for a binlog that it cannot send alone.",
        "The batch is not applied.",
        "Restart the Drainer, which asks again. Was the Pump's data folder exchanged?",
    )
    BINLOG_AHEAD = (
        3110,
        "A binlog has a timestamp that the oracle cannot have handed out yet.",
        "The Pump refuses it, and asks the oracle; a writer tries again. Stored, it would hold up"
        " all other transactions until that time.",
        "Correct the writer: each timestamp must come from the oracle, or the PD, of this cluster.",
    )

    # How a Pump finds out the outcome of a transaction.

    RESOLVER_URL = (
        3201,
        "`resolver.url` of a Pump cannot be used.",
        _NOT_STARTED,
        "Write it as the hint says: one URL, or `name=URL` for each outbox.",
    )
    RESOLVER_AWAY = (
        3202,
        "The database that knows the outcome of a transaction does not answer.",
        "The Prewrite stays open, and so the merge waits; the Pump asks again.",
        "See that the database runs and that the Pump reaches it.",
    )
    RESOLVER_OUTBOX = (
        3203,
        "A transaction is from an outbox that this Pump does not know.",
        "A new Prewrite of it is refused. One that is stored stays open, and the merge waits.",
        'Set `resolver.kind = "sql"` and add `name=URL` of that outbox to `resolver.url` of every'
        " Pump.",
    )

    # What a Pump refuses of another one that has a copy of its log here.

    COPY_OTHER_DISK = (
        3301,
        "A Pump asks for the copy of its log on a disk that this Pump does not have.",
        "The request is refused. The Pump that asks takes the disk off the list of its log's"
        " copies, and looks for another one.",
        "Nothing, if the data folder was replaced or lost. Was it restored from a copy of another"
        " machine's? Then stop that Pump: two with one folder must not run.",
    )
    COPY_MALFORMED = (
        3302,
        "A Pump sent something for the copy of its log that contradicts itself.",
        "It is refused, and the copy stays as it was. The Pump that sent it continues with the"
        " other copies of its log.",
        "Do the Pumps run different versions? Upgrade the one with the copy first. If they are the"
        " same, look at the network between the two, or report it as a defect.",
    )
    COPY_NOT_FOLLOWED = (
        3303,
        "The copy of a log takes nothing at the moment.",
        "The Pump that asks tries again. If that lasts, it takes the disk off its list.",
        "A Pump may be running on the copy, which took over the log. Otherwise look at the lines"
        " before this one: they say why the folder of the copy cannot be opened.",
    )

    # What a Pump says of the copies of its own log.

    TOO_FEW_COPIES = (
        3304,
        "Fewer copies of a Pump's log are there than `copies-min` asks for.",
        "The Pump acknowledges nothing. Writers try another Pump for new transactions, Commits of"
        " open ones wait. It continues by itself once a copy is back or another one has joined.",
        "Start the Pumps that are down, or one more. `copies-min` says with how few it continues.",
    )
    LOG_DEPOSED = (
        3305,
        "A Pump found out that another one has begun to serve its log.",
        "It stops before it acknowledges anything more; what it had acknowledged is on the other"
        " one, too.",
        "Nothing, as a rule: its log was moved, or it was taken for dead. Then see why it was"
        " silent, and `takeover-after-s`. Its supervisor starts it again.",
    )
    LOG_DISPLACED = (
        3306,
        "A Pump starts whose log was taken over by another one.",
        "It waits, and takes copies of other logs meanwhile. Once every Drainer has all that was in"
        " its log, it sets its files aside and begins again under its name.",
        "Nothing, while all Drainers run. `penstock ctl status` of this node id is answered by the"
        " process that serves its log, and names in `closing` the Drainers that are late: start one"
        " that is down.",
    )
    LOG_ENTRY_GONE = (
        3307,
        "The list of the copies of a log is not in etcd any more.",
        "The Pump does not start, or changes nothing of its copies.",
        "Is this the etcd of the cluster? If it lost its data, see [Restoring from"
        " backups](restoring.md#etcd): a snapshot is compared with the disks of all Pumps, and"
        " `penstock ctl adopt-log` names the disk that continues a log. Do not start an older data"
        " folder instead: it lacks what was acknowledged since.",
    )
    BYTES_NOT_HERE = (
        3308,
        "A Pump was asked for bytes of a log, to mend another disk with, and does not have them.",
        "Another disk with the log is asked.",
        "Nothing by itself. If no disk has them, the place stays damaged, and is named by its own"
        " error.",
    )
    COPY_INCOMPLETE = (
        3309,
        "The copy of a log lacks what etcd says that its disk has.",
        "No Pump is started on it: it would serve the log without what is missing.",
        "Was the folder of the copy deleted, or a file in it? Put it back if you can. Otherwise"
        " start the Pump of the log, or another one that etcd lists for it.",
    )
    LOG_NOT_MOVED = (
        3310,
        "A Pump's log cannot be moved to where it was asked to go, or is there already.",
        "The log stays where it is, and its Pump serves it.",
        "The error says why, and what to do. A log with one copy has nowhere to go; `copies-apart`"
        " and `copies-min` may ask for another Pump than the one that was named.",
    )

    LOG_OLDER = (
        3311,
        "A Pump's data folder, or the copy of a log in it, is older than the log, as one from a"
        " backup is.",
        "The Pump does not serve the log: what was acknowledged since would be gone without a word,"
        " and copies would be cut to what the folder has.",
        "With copies, keep the folder elsewhere, and start the Pump with an empty one. Another Pump"
        " serves the log from its copy, and nothing is lost. With one copy, start the Pump with its"
        " newest folder; if that is gone for good, `penstock ctl lost-pump` gives up what only it"
        " held, and a Pump with another node id takes its place. See [Restoring from"
        " backups](restoring.md#a-pumps-data-folder).",
    )
    LOG_PUT_BACK = (
        3312,
        "The list of a log's copies in etcd is older than a disk, or disks have parted.",
        "The Pump does not serve the log: copies that are newer would be cut to what it has. Where"
        " one disk has all that any disk has, its Pump continues the log once all Pumps run.",
        "Was etcd restored from a backup? Start all Pumps of the cluster, also those that etcd"
        " calls offline. If the histories have parted, the error names them, and for each one the"
        " `penstock ctl adopt-log` that continues it; what only the other one has is lost then, so"
        " back up its folder before. If no disk has the log, it names the one that begins a new"
        " log. See [Restoring from backups](restoring.md#etcd).",
    )

    # Binlogs and rows.

    BINLOG_UNDECODABLE = (
        4001,
        "The bytes of a binlog are not what its format says.",
        _DRAINER_STOPS,
        "Writer, Pumps and Drainer must speak the same `binlog.proto`. Find the writer; the"
        " transaction is named by its `commit_ts`. See [When it"
        " stops](drainer/guide/when_it_stops.md) for how to leave one out, which loses its rows.",
    )
    BINLOG_CHUNKS = (
        4002,
        "The chunks of a large transaction do not fit together.",
        "The Pump refuses them, or stops at them; nothing is skipped.",
        "The writer has a defect or speaks another version.",
    )
    ROW_MALFORMED = (
        4003,
        "The bytes of a row are not what TiDB's row format says.",
        _DRAINER_STOPS,
        "The row was written with another version of the table, or by a writer with a defect. The"
        " transaction is named by its `commit_ts`; repair the downstream by hand before you leave"
        " it out.",
    )
    VALUE_REFUSED = (
        4004,
        "A row, or one of its values, does not fit its table.",
        _CALLER,
        "Give a value that the column can hold, one for each column.",
    )
    COLUMN_TYPE = (
        4005,
        "A column has a type for which there is no row format.",
        _FOLLOWER_STOPS,
        "Leave the table out by a filter, or change the column.",
    )
    TABLE_KEY = (
        4006,
        "A table's rows cannot be told apart by a key that is part of them.",
        _DRAINER_STOPS,
        "Give the table a primary key of stored columns.",
    )

    # Writers.

    TABLE_UNKNOWN = (
        4101,
        "A writer names a table that is not there, or that takes no rows.",
        _CALLER,
        "Correct the name, or create the table by `client.ddl`.",
    )
    TABLE_CHANGED = (
        4102,
        "A table was dropped or truncated while a transaction was writing to it.",
        "The transaction is rolled back.",
        "Run it again.",
    )
    TRANSACTION_OVER = (
        4103,
        "A transaction was used after its end.",
        _CALLER,
        "Begin another one.",
    )
    TRANSACTION_TOO_OLD = (
        4104,
        "Too much time has passed between a transaction's timestamp and its commit.",
        "The transaction is not committed.",
        "Run it again. Fetch the timestamp later, or commit sooner.",
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
        "Make room there, or name another folder in `Options.spill_dir`.",
    )
    COMMIT_WITHOUT_PREWRITE = (
        4107,
        "A Commit was passed to a client that did not write its Prewrite.",
        _CALLER,
        "Write the Prewrite and its Commit through one client.",
    )
    NO_PUMP = (
        4108,
        "No Pump is online that may take a writer's transactions.",
        "Nothing is committed.",
        "Look at `penstock ctl pumps`. Start one, or one with the labels that the writer asks for.",
    )
    PREWRITE_NOT_TAKEN = (
        4109,
        "No Pump took a transaction within the time that was allowed.",
        "The transaction did not happen.",
        "Run it again. The line has the last reason that a Pump gave.",
    )
    PREWRITE_REFUSED = (
        4110,
        "Every Pump refuses a transaction, and will again.",
        "The transaction did not happen.",
        "The line has the reason of the last Pump: its size, a full disk, or a certificate.",
    )
    COMMIT_ROLLED_BACK = (
        4111,
        "A Pump has rolled a transaction back before its Commit came.",
        "The transaction did not happen.",
        "Run it again. The writer was away for longer than the Pump's `txn-timeout-s`.",
    )
    COMMIT_LATE = (
        4112,
        "A Pump did not acknowledge Commits in time.",
        "The Pump decides about them. A source asks for the outcome before it continues.",
        "Nothing, if the Pump comes back. Else look at the Pump.",
    )
    OUTCOME_UNKNOWN = (
        4113,
        "A Commit was sent, and no answer came: most likely it is done, but not surely.",
        "The client continues to deliver it. The transaction will be there as a whole, or not at"
        " all.",
        "Call `error.wait()`. Do not run the transaction again before that says what became of it.",
    )
    COMMIT_ORDER_BROKEN = (
        4114,
        "A transaction of a source was rolled back, and a later one is committed.",
        "The source stops. What is committed stays.",
        "Let the source continue: each Drainer stops before the later one (PS-6015), which says how"
        " to go on. The source was away for longer than the Pumps' `txn-timeout-s`.",
    )

    # The outbox of an application's own database.

    OUTBOX_UNUSABLE = (
        4201,
        "An outbox cannot be made of this connection or under this name.",
        _CALLER,
        "Use a connection of `sqlite3` or PyMySQL, and a name as the hint says.",
    )
    OUTBOX_KEY = (
        4202,
        "A key of an outbox is used by two transactions.",
        "The Pump leaves the transaction open: what became of it is not known.",
        "Each transaction needs a key of its own; `pumpclient.outbox` makes them.",
    )
    OUTBOX_FENCED = (
        4203,
        "A transaction took too long between its Prewrite and its commit in the database.",
        "It is rolled back on both sides.",
        "Run it again.",
    )
    OUTBOX_NOT_COMMITTED = (
        4204,
        "The application's database did not commit.",
        "The transaction did not happen, on either side.",
        "Run it again.",
    )
    OUTBOX_ENDED = (
        4205,
        "The database's transaction was ended within the block of an outbox.",
        "What the database committed stays, without a binlog of this transaction.",
        "Leave COMMIT, ROLLBACK and DDL out of the block.",
    )
    OUTBOX_ROLLED_BACK = (
        4206,
        "The database committed, and a Pump has rolled the transaction back.",
        "The rows are in the database, and will not come downstream.",
        'Set `resolver.kind = "sql"` and the URL of the database on every Pump, and write these'
        " rows once more.",
    )

    # DDL statements.

    DDL_UNREADABLE = (
        5001,
        "A DDL statement cannot be read.",
        _FOLLOWER_STOPS,
        "Check the statement. One that the server took, and that Penstock cannot read, is"
        " overridden: see [When it stops](drainer/guide/when_it_stops.md). Please report it.",
    )
    DDL_UNSUPPORTED = (
        5002,
        "A DDL statement does something that Penstock does not follow.",
        _FOLLOWER_STOPS,
        "The hint names another way to write it. Or run it downstream by hand and track it: see"
        " [When it stops](drainer/guide/when_it_stops.md).",
    )
    DDL_NAME = (
        5003,
        "A name in a DDL statement is not a valid one.",
        _FOLLOWER_STOPS,
        "Choose another name.",
    )
    DDL_NOT_FOUND = (
        5004,
        "A DDL statement names a database, table or sequence that is not there.",
        _FOLLOWER_STOPS,
        "Check the name. In a stream it means that the object was made before replication began, or"
        " while it was left out.",
    )
    DDL_EXISTS = (
        5005,
        "A DDL statement creates what is there already.",
        _FOLLOWER_STOPS,
        "Drop the old one, or choose another name.",
    )
    DDL_OTHER_KIND = (
        5006,
        "A DDL statement is for another kind of object: a table, a view or a sequence.",
        _FOLLOWER_STOPS,
        "Use the statement for that kind.",
    )
    DDL_DEFINITION = (
        5007,
        "A table's definition, its columns, keys or partitions, do not fit together.",
        _FOLLOWER_STOPS,
        "The error says what does not fit. A server that takes the definition nevertheless has"
        " another version or sql_mode: override the statement.",
    )
    DDL_DEFAULT = (
        5008,
        "The default of a column cannot be used, or what older rows get by it cannot be known.",
        _FOLLOWER_STOPS,
        "Add the column without that default, fill it, then set the default.",
    )
    CHARSET = (
        5009,
        "A character set or a collation is not known, or a text is not in it.",
        _FOLLOWER_STOPS,
        "Use `utf8mb4` and one of its collations, or override the statement.",
    )
    DDL_VIEW = (
        5010,
        "Which tables a view reads cannot be found out, or not under other names.",
        _FOLLOWER_STOPS,
        "Create the view downstream by hand, and track the statement.",
    )
    DDL_SUCCESSOR = (
        5011,
        "Whether a new column has the values of one that is dropped cannot be known.",
        _DRAINER_STOPS,
        "Change the downstream by hand as upstream was changed, then track the DDL.",
    )
    DDL_SEVERAL = (
        5012,
        "Several statements, or one that comes to several, stand where one is needed.",
        _NOT_DONE,
        "Give exactly one, which does one thing.",
    )
    DDL_ROLLED_BACK = (
        5013,
        "A DDL took too long and was rolled back.",
        "The statement did not happen.",
        "Run it again.",
    )

    # The Drainer.

    PUMP_DISORDER = (
        6001,
        "A Pump sent a transaction out of order.",
        _DRAINER_STOPS,
        "Two Pumps run under one node id, or the Pump's files are damaged: look at its log and at"
        " `penstock ctl pumps`.",
    )
    PUMP_CAME_BACK = (
        6002,
        "A Pump came back with transactions from before the place to which this Drainer has gone"
        " without it.",
        _DRAINER_STOPS,
        "Restore the downstream from a backup of before that. Or read those transactions with"
        " `penstock ctl dump`, repair the downstream by hand, and only then name them in"
        " `ignore-txn-commit-ts`.",
    )
    COMMIT_TS_TWICE = (
        6003,
        "Two transactions have the same `commit_ts`.",
        _DRAINER_STOPS,
        "All writers must have their timestamps from one oracle. Find the two writers.",
    )
    PULL_REFUSED = (
        6004,
        "A Pump refuses to send what a Drainer asks for.",
        _DRAINER_STOPS,
        "The Pump's answer is part of the line, with the Pump's own code where it has one.",
    )
    PULL_MALFORMED = (
        6005,
        "A Pump sent what does not fit together.",
        _DRAINER_STOPS,
        "Pumps and Drainer must run versions that fit: upgrade the Pumps first.",
    )
    PUMP_LEFT = (
        6006,
        "A Pump went offline with binlogs that this Drainer does not have.",
        _DRAINER_STOPS,
        "Start that Pump again with its folder, and then the Drainer. Or restore the downstream"
        " from a newer backup.",
    )
    SPOOL = (
        6007,
        "The file in which a Drainer keeps a large transaction cannot be written or read.",
        _DRAINER_STOPS,
        "Make room in the Drainer's `data-dir`, or name another one, and start it again.",
    )
    DDL_TOO_LARGE = (
        6008,
        "A DDL is larger than any statement that a person writes.",
        _DRAINER_STOPS,
        "Look for its writer; the line has the `commit_ts`.",
    )
    SCHEMA_UNKNOWN = (
        6009,
        "Rows belong to a table or a schema version that this Drainer does not know.",
        _DRAINER_STOPS,
        "Look at the history of DDL (`drainer ddl list`). A row is never decoded by a guess.",
    )
    SNAPSHOT_DAMAGED = (
        6010,
        "The file `schema.snapshot` of a Drainer is damaged.",
        "The Drainer makes it again from the history of DDL.",
        "Nothing is to be done; if it happens again, look at the disk.",
    )
    SNAPSHOT_OVERRIDE = (
        6011,
        "The Drainer's schema follows an override that the downstream's checkpoint does not have.",
        _NOT_STARTED,
        "Put the checkpoint back. Only if this is another downstream, delete the file.",
    )
    CHECKPOINT_AHEAD = (
        6012,
        "The checkpoint is ahead of the newest timestamp of the cluster.",
        _NOT_STARTED,
        "Etcd was put back, or the checkpoint is of another cluster. Starting would leave out what"
        " commits until the clock has passed it.",
    )
    CHECKPOINT_INCONSISTENT = (
        6013,
        "The downstream is between two consistent states, and what is needed to go on is missing.",
        _NOT_STARTED,
        "Start the Drainer that wrote it, and let it end in order; then start this one.",
    )
    LOOPBACK_TABLE = (
        6014,
        "The table by which a loop of two clusters is noticed has another shape.",
        _DRAINER_STOPS,
        "Let a Drainer create the table: see [Filters and other"
        " names](drainer/guide/filters_and_routes.md).",
    )
    ORIGIN_GAP = (
        6015,
        "Transactions of a source are missing: a later one names one that never came, or the"
        " source continues an epoch that it had left.",
        _DRAINER_STOPS,
        "Find out what was lost: a Pump's disk or folder from a backup, a source that was paused"
        " for longer than the Pumps' `txn-timeout-s`, or an etcd from before the source's last"
        " load. Then do what the hint says: name the `commit_ts` in `accept-gap-commit-ts`, and"
        " repair the tables by `penstock verify --repair` or `mysql-source reload`.",
    )

    # Spark.

    JAVA = (
        6101,
        "There is no Java that Spark can run on.",
        _NOT_STARTED,
        "Install a JRE of version 17 or later, or the extra `jre`; `JAVA_HOME` names another one.",
    )
    SPARK_ENDED = (
        6102,
        "Spark ended.",
        "The Drainer ends with exit code 1; its supervisor starts it again, from the checkpoint.",
        "`spark.log` in the Drainer's `data-dir` has the reason: mostly memory.",
    )
    SPARK_TASK = (
        6103,
        "Spark tasks failed again and again while they worked on one part of a batch.",
        _DRAINER_STOPS,
        "Look at `spark.log` in the Drainer's `data-dir`: mostly memory. Smaller batches"
        " (`batch-rows-max`) need less.",
    )
    SPARK_VERSION = (
        6104,
        "A Spark task runs another version of Penstock than the Drainer.",
        _DRAINER_STOPS,
        "Remove what the executors find before the Drainer's own code, and restart a Drainer that"
        " was upgraded while it ran.",
    )
    SPARK_MESSAGE = (
        6105,
        "What a Drainer and its Spark tasks say to each other cannot be read.",
        _DRAINER_STOPS,
        "Both must run the same version. If they do, please report it.",
    )

    # Programs that read the stream.

    READER_POSITION = (
        6301,
        "A program that reads the stream names a place at which it cannot be.",
        _CALLER_READS,
        "Hand back a `checkpoint` of the reader as it was, or give a `commit_ts` as a number."
        " Acknowledge what this reader has given, once it is stored.",
    )
    READER_NAME = (
        6302,
        "A name for a reader has letters that a name cannot have.",
        _CALLER_READS,
        "Up to 100 letters, digits, dots, dashes and underscores; the first one is no mark.",
    )
    READER_ROWS_GONE = (
        6303,
        "A program asks for the changes of a large transaction when it has the next one already.",
        _CALLER_READS,
        "Read the changes of a transaction before asking for what comes next; a large one is not"
        " kept. Begin again at the last stored checkpoint to see it once more.",
    )

    # The Drainer's relay log.

    DRAINER_LOG_DAMAGED = (
        6201,
        "The relay log of a Drainer is damaged.",
        _DRAINER_STOPS,
        "While the Pumps still have what is in it, move it away and start again: the Drainer pulls"
        " from its checkpoint.",
    )
    DRAINER_LOG_LACKS = (
        6202,
        "The relay log lacks what is needed to make the downstream consistent without Pumps.",
        _NOT_STARTED,
        "Bring the upstream back. Was the relay log switched off, moved or emptied?",
    )
    DRAINER_LOG_FULL = (
        6203,
        "There is no room for the relay log of a Drainer.",
        _DRAINER_STOPS,
        "Make room, or move it to another disk; nothing was applied that is not in it.",
    )
    DRAINER_LOG_ENDS = (
        6204,
        "The relay log ends at a DDL whose text is not in it.",
        "The downstream is made consistent up to there.",
        "Start the Drainer again when the upstream is back.",
    )

    # The downstream.

    SINK_URL = (
        7001,
        "The address of the downstream cannot be used.",
        _NOT_STARTED,
        "Write `sqlite:///file.db` or `mysql://user@host:port/`, with percent-encoding for special"
        " characters; a password belongs into `password-file`.",
    )
    SINK_AWAY = (
        7002,
        "The downstream does not answer, or is locked.",
        "The Drainer tries again for ten minutes, then ends with exit code 1, so that its"
        " supervisor starts it again. Nothing is lost.",
        "Look at the downstream: whether it runs, and who holds its locks.",
    )
    SINK_REFUSES = (
        7003,
        "The downstream refuses a row or a statement, and will again.",
        _DRAINER_STOPS,
        "The line names table, row and the range of `commit_ts`. Repair the downstream and start"
        " again; see [When it stops](drainer/guide/when_it_stops.md).",
    )
    SINK_ROW_CONFLICT = (
        7004,
        "A row meets another one downstream that has its unique value.",
        _DRAINER_STOPS,
        "Both rows are named. One of them was written downstream by hand, or the downstream's"
        " collation takes two texts for equal.",
    )
    SINK_GRANT = (
        7005,
        "The Drainer's account downstream lacks a privilege.",
        _NOT_STARTED,
        "Grant what the hint names.",
    )
    SINK_COLLATION = (
        7006,
        "The downstream lacks a collation.",
        _DRAINER_STOPS,
        'Set `apply.collations = "map"` where the error offers it, or run another statement in its'
        " place by `drainer ddl replace`.",
    )
    SINK_PACKET = (
        7007,
        "A row is larger than the downstream's `max_allowed_packet`.",
        "The Drainer, or the load, stops before it. The row is not cut.",
        "Raise `max_allowed_packet` there, and start again.",
    )
    SINK_DDL_MOMENT = (
        7008,
        "A DDL's values depend on a moment or a session that the downstream cannot be given.",
        _DRAINER_STOPS,
        "The DDL has not run downstream. Make the downstream able to, or do what the DDL does by"
        " hand, as the hint says; then track the DDL.",
    )
    SINK_DDL_DOUBT = (
        7009,
        "Whether the downstream has already run a DDL is not known.",
        _DRAINER_STOPS,
        "Look at the downstream. Run the statement there by hand if it is not done, then track it.",
    )
    SINK_COMMIT_DOUBT = (
        7010,
        "A commit downstream got no answer.",
        "The Drainer finds out by the checkpoint, and repeats only what did not happen.",
        "Nothing is to be done.",
    )
    CHECKPOINT_DAMAGED = (
        7101,
        "The checkpoint in the downstream cannot be read.",
        _NOT_STARTED,
        "Put back the `commitTS` up to which the downstream surely has everything, from a backup or"
        " from the Drainer's log.",
    )
    CHECKPOINT_CLUSTER = (
        7102,
        "The downstream has a checkpoint of another cluster, and none of this one.",
        _NOT_STARTED,
        "Check `etcd-urls` and the downstream's address. Two clusters that share one downstream"
        " need a place for the checkpoint each.",
    )
    CHECKPOINT_TAKEN = (
        7103,
        "Another Drainer writes to this downstream.",
        "This one writes nothing more: it stands by, or ends with exit code 2 where the other one"
        " cannot be seen in etcd.",
        "Let one of them write. Two that have the same etcd and downstream settle it by"
        " themselves: one is the standby.",
    )
    CHECKPOINT_GONE = (
        7105,
        "The downstream has lost its checkpoint, or has an older one than before.",
        "The Drainer stops, or does not start. Beginning again here would leave a gap, or bring"
        " changes twice.",
        "Put the downstream back as it was. Or restore a copy and start the Drainer with"
        " `initial-commit-ts`, the `commit_ts` up to which the copy has everything.",
    )
    OVERRIDES_CHANGED = (
        7104,
        "An operator changed overrides of DDL while a Drainer was writing.",
        "The Drainer commits nothing until it has read them again, which it does by itself.",
        "Nothing is to be done.",
    )
    SQLITE_DDL = (
        7201,
        "SQLite cannot do what a DDL does.",
        _DRAINER_STOPS,
        "Change the file by hand as the hint says, then track the DDL.",
    )
    SQLITE_FILE = (
        7202,
        "The file of a SQLite downstream cannot be used.",
        _NOT_STARTED,
        "Check the path and the rights, and that the file is a database of SQLite.",
    )

    # Binlog files, and restores from them.

    FILES_DAMAGED = (
        7301,
        "A binlog file, or a schema file beside it, is not what was written.",
        "What reads it ends with this error. It never skips a damaged place.",
        "The error names file and offset. Put the file back from a copy. Without one, what comes"
        " before the damaged place can be restored: give a `commit_ts` before it as the end.",
    )
    FILES_SAVEPOINT = (
        7302,
        "The savepoint beside binlog files is missing or damaged.",
        "The Drainer does not start, or the restore ends. The files are left as they are.",
        "Put the savepoint back that was there; it says up to where the files hold. Or give the"
        " Drainer a folder of its own.",
    )
    FILES_GAP = (
        7303,
        "Binlog files are missing between others, or between the target and the first one.",
        "The Drainer does not start, or nothing is restored: changes would be missing.",
        "Put the missing files back, as they were. Or begin with a copy of the tables that is of a"
        " later `commit_ts`; the error names which.",
    )
    FILES_TIME_ZONE = (
        7304,
        "Files and settings have two time zones for TIMESTAMPs.",
        "The Drainer does not start, or nothing is restored.",
        "Write the time zone that the files say, or use another folder.",
    )
    FILES_UNUSABLE = (
        7305,
        "Binlog files cannot be written.",
        "The Drainer stops. What is committed is in the files, and a start continues there.",
        "Check the path, its rights and its disk, then start the Drainer again.",
    )
    FILES_SCHEMA = (
        7306,
        "Binlog files have rows of a table whose definition is not there.",
        "The restore ends at this place. What was restored before it is consistent.",
        "Name a schema file of the time before the first file (`schema-file`), or leave the table"
        " out by a filter.",
    )
    RESTORE_PLACE = (
        7307,
        "A restore is to end or begin where it cannot.",
        "Nothing is restored.",
        "The error says up to where the files hold and where the target is. Give an end between the"
        " two, or take another target.",
    )

    # Kafka.

    KAFKA_TOPIC = (
        7401,
        "A topic is missing, lost messages, cannot be created, or cannot have its name.",
        _DRAINER_STOPS,
        "Create the topic, or let the Drainer do it (`create-topics`). If a topic lost messages,"
        " restore it or start with `initial-commit-ts` at the checkpoint. The error says what is"
        " refused.",
    )
    KAFKA_SIZE = (
        7402,
        "A row is larger than a message may be, or a topic takes smaller ones than it should.",
        _DRAINER_STOPS,
        "Raise `max-message-bytes` in the sink's URL and `max.message.bytes` of the topic, or pick"
        " by `oversize` what readers get of such a row.",
    )
    KAFKA_ACCOUNT = (
        7403,
        "Kafka refuses the account, or denies it a right.",
        _DRAINER_STOPS,
        "The error names what is denied. The password is read from `password-file`.",
    )
    KAFKA_TRANSACTIONS = (
        7404,
        "Kafka has no transactions, or refuses how long one may take.",
        _DRAINER_STOPS,
        "Use a Kafka that has transactions, and a `transaction-timeout` that it allows. With"
        " `delivery=at-least-once` readers may see a batch twice.",
    )
    KAFKA_MESSAGE = (
        7405,
        "A topic does not take a message: it is compacted, and the message has no key.",
        _DRAINER_STOPS,
        "Give the table a primary key, use `partition=key`, or set the topic's `cleanup.policy` to"
        " `delete`.",
    )
    KAFKA_CLAIM_CHECK = (
        7406,
        "A row that is too large for its topic cannot be kept in `claim-check-dir`.",
        _DRAINER_STOPS,
        "Check that the folder is there, mounted, and the Drainer's to write. The batch is sent"
        " again at the next start.",
    )

    # A lake of Delta tables.

    DELTA_TABLE = (
        7501,
        "A Delta table is not what this cluster has written.",
        _DRAINER_STOPS,
        "The error names the table and both versions. Bring the table back to the version that the"
        " Drainer knows (Delta's RESTORE), or use another folder.",
    )
    DELTA_DDL = (
        7502,
        "A Delta table cannot follow a DDL.",
        _DRAINER_STOPS,
        "Change the Delta table by hand as the hint says, then track the DDL.",
    )
    DELTA_UNUSABLE = (
        7503,
        "The folder of a lake cannot be read or written.",
        "The Drainer stops. What is committed is in the tables, and a start continues there.",
        "Check the path, its rights and its disk, then start the Drainer again.",
    )
    DELTA_VALUE = (
        7504,
        "A row has a value that a lake has no form for, where NULL will not do.",
        _DRAINER_STOPS,
        "Change the row upstream, or leave its table or transaction out.",
    )
    DELTA_MODE = (
        7505,
        "A lake was begun with another mode than the one that is asked for.",
        _NOT_STARTED,
        "A mirror and a change log have other tables: write the mode that the error names into the"
        " sink's URL, or name another folder, and begin it from a commit_ts that the Pumps still"
        " have.",
    )

    # A MySQL or MariaDB server.

    SERVER_URL = (
        8001,
        "The address of a server cannot be used.",
        _NOT_STARTED,
        "Write `mysql://user@host:port/`, with percent-encoding for special characters.",
    )
    SERVER_AWAY = (
        8002,
        "The server does not answer, or the connection was cut.",
        _AGAIN,
        "Look at the server and at the network.",
    )
    SERVER_REFUSES = (
        8003,
        "The server refuses, with an error of its own.",
        "A command ends with exit code 2. A source shows `failed`, and waits for an operator.",
        "The server's error and its number are part of the line.",
    )
    SERVER_GRANT = (
        8004,
        "The account on the server lacks a privilege.",
        "A command ends with exit code 2. A source shows `failed`, and waits for an operator.",
        "Grant what the hint names; `mysql-source check` tries all that is needed.",
    )
    SERVER_SETTING = (
        8005,
        "The server has a setting with which it cannot be replicated.",
        "The source does not begin.",
        "Change it as the hint says; `mysql-source check` shows all of them.",
    )
    SERVER_ID_TAKEN = (
        8006,
        "Another replica of the server has this server id.",
        "The source tries again: the server keeps only one of the two.",
        "Give the source another server id.",
    )
    SERVER_PURGED = (
        8007,
        "The server has deleted binlogs that are still needed.",
        "The source shows `failed`. Nothing is skipped.",
        "Stop the source and load all tables again (`mysql-source reload --all`), and let the"
        " server keep its binlogs for longer (`binlog_expire_logs_seconds`). A relay log of the"
        " source protects against it.",
    )
    SERVER_POSITION_LOST = (
        8008,
        "The server's binlog is not the one in which our position is.",
        "The source shows `failed`. Nothing is skipped.",
        "The server was reset, restored, or is another one. Stop the source and load all tables"
        " again (`mysql-source reload --all`).",
    )
    SERVER_OTHER = (
        8009,
        "The address leads to another server than before.",
        "The source stops before it takes anything of the new one.",
        "With GTIDs on all servers it continues automatically at a new primary that has all"
        " transactions. Otherwise stop the source and load all tables again (`mysql-source reload"
        " --all`).",
    )
    SERVER_RESET = (
        8010,
        "The server was reset, and its binlog does not continue from the checkpoint.",
        "The source shows `failed` and names both histories. Nothing is skipped.",
        "Stop the source and load all tables again (`mysql-source reload --all`). Or follow the"
        " server's present history from its beginning (`mysql-source continue --accept-gap`) and"
        " reload the tables that differ.",
    )
    SERVER_STREAM = (
        8011,
        "Packets of the server's stream are lost or out of order.",
        "The connection is dropped, and the same place is asked for again.",
        "If it stays, look for a proxy in between, which does not know replication.",
    )
    ENGINE_WITHOUT_TRANSACTIONS = (
        8012,
        "Tables of an engine without transactions take part.",
        "The load does not begin, or the source stops: what became of such rows is not known.",
        "ALTER TABLE … ENGINE = InnoDB, or leave these tables out by filters.",
    )
    LETTER_CASE = (
        8013,
        "Two names differ in letter case only, and that makes no difference here.",
        "Nothing of the second table is taken.",
        "Rename one of them on the server, route it to another name, or leave it out.",
    )
    FOREIGN_KEY_ACTIONS = (
        8014,
        "Foreign keys change rows of child tables, which the server's binlog does not have.",
        _SOURCE_STOPS,
        "Change the foreign keys as the hint says, or accept them by the setting `cascades`.",
    )

    # The binlog of a MySQL or MariaDB server.

    EVENT_UNKNOWN = (
        8101,
        "The server's binlog has an event, or a format, that is not known.",
        _SOURCE_STOPS,
        "A newer version of Penstock may know it. The error names the place.",
    )
    EVENT_MALFORMED = (
        8102,
        "An event of the server's binlog is damaged.",
        _SOURCE_STOPS,
        "Check the server's file with `mysqlbinlog --verify-binlog-checksum`. If it is whole, the"
        " damage is in the relay log: see the hint.",
    )
    ROWS_EVENT = (
        8103,
        "The rows of an event, or of a table that is loaded, cannot be read.",
        _SOURCE_STOPS,
        "The error names table and place. ALTER TABLE … FORCE on the server renews old types.",
    )
    BINLOG_METADATA = (
        8104,
        "The server's binlog lacks what is needed to read a column.",
        _SOURCE_STOPS,
        "Set `binlog_row_metadata = FULL` on the server and let its clients connect again. What was"
        " written before stays without it.",
    )
    BINLOG_ROW_IMAGE = (
        8105,
        "The server's binlog has only a part of the columns of a row.",
        _SOURCE_STOPS,
        "Set `binlog_row_image = FULL` on the server and let its clients connect again. Load the"
        " table again for what was written before.",
    )
    BINLOG_STATEMENT_FORMAT = (
        8106,
        "The server's binlog has a change of rows as a statement.",
        _SOURCE_STOPS,
        "Set `binlog_format = ROW` on the server and let its clients connect again. `skip` the"
        " statement, then `reload` the replicated tables that it changed.",
    )
    BINLOG_INCIDENT = (
        8107,
        "The server says that its binlog lacks changes.",
        _SOURCE_STOPS,
        "Compare the tables, load them again, and begin after this place.",
    )
    XA_PREPARED = (
        8108,
        "A prepared XA transaction is older, or larger, than what can be kept.",
        _SOURCE_STOPS,
        "End what `XA RECOVER` lists on the server.",
    )
    GTID_MALFORMED = (
        8109,
        "A text or bytes are no GTID or set of GTIDs.",
        "Nothing is begun at such a place.",
        "Write it as the server does: `SELECT @@gtid_executed` or `@@gtid_binlog_pos`.",
    )
    STATEMENT_UNREADABLE = (
        8110,
        "A statement means something else under its session's settings, or cannot be read.",
        _SOURCE_STOPS,
        "Give a statement to run in its place, or skip it; the status shows the command.",
    )
    ONLINE_DDL = (
        8111,
        "The tables of an online change of schema (gh-ost, pt-osc) cannot be followed.",
        _SOURCE_STOPS,
        "Let the tool run again from its beginning, or give the statement by hand.",
    )
    TABLE_DIFFERS = (
        8112,
        "A table is not the same on the server and here.",
        _SOURCE_STOPS,
        "Alter one of the two so that they agree; compare SHOW CREATE TABLE.",
    )
    LEFT_OUT_COPIED = (
        8113,
        "A statement copies the definition of a table that is left out.",
        _SOURCE_STOPS,
        "Replace it by a CREATE TABLE with all columns, or leave the new table out too.",
    )

    # The relay log of a source.

    RELAY_INDEX = (
        8201,
        "The index, a name or the state file of a source's relay log is not what it must be.",
        "The source does not start, or shows `failed`.",
        "Nothing but the source may write in its relay log's folder. Move away what is not of it.",
    )
    RELAY_GONE = (
        8202,
        "A file of a source's relay log is gone or shorter than it was.",
        "The source shows `failed`. Nothing is skipped.",
        "Restore the file, or move the relay log away: the source begins at its checkpoint, as long"
        " as the server has the binlog from there on.",
    )
    RELAY_DAMAGED = (
        8203,
        "A file of a source's relay log is damaged.",
        "The source shows `failed`. Nothing is skipped.",
        "Move the relay log away: the source begins at its checkpoint, as long as the server has"
        " the binlog from there on. Then look at the disk.",
    )
    RELAY_UNUSABLE = (
        8204,
        "A source's relay log cannot be opened.",
        "The source shows `failed`. Nothing is skipped.",
        "The reason is part of the line; the hint says what can be done.",
    )

    # The initial load.

    LOAD_DISTURBED = (
        8301,
        "Something came between a load and its end.",
        "The load begins again for the tables that are not done; what is done stays.",
        "Nothing is to be done; leave DDL out until the load is through if it happens often.",
    )
    LOAD_OF_OTHER = (
        8302,
        "A load was begun by another source, or ended early among tables that others share.",
        "Nothing is loaded.",
        "Remove `load.json` and the targets that the line names, and load again.",
    )
    LOAD_XA = (
        8303,
        "Transactions are prepared by XA while a load begins.",
        _AGAIN,
        "End what `XA RECOVER` lists on the server.",
    )
    LOAD_NO_TABLES = (
        8304,
        "The Drainer has not created the tables into which is to be loaded.",
        "The load waits for them for a time, then ends.",
        "See that the Drainer runs, that this is its downstream, and that its filters and routes"
        " are those that the load expects.",
    )
    LOAD_REFUSED = (
        8305,
        "The downstream refuses rows of a load.",
        "The load stops; it continues when it is run again.",
        "Compare the table with the source's, and see that nothing else writes there.",
    )
    LOAD_STATEMENT = (
        8306,
        "A statement came while a part of the tables that it is about was loaded.",
        "The load stops.",
        "Load once more from the beginning, without such statements meanwhile.",
    )
    LOAD_TARGET = (
        8307,
        "A table into which is to be loaded is there already, and not by this load.",
        "Nothing is loaded into it.",
        "Drop it, leave it out by the filters, or load into it by `into-existing`.",
    )
    LOAD_STATE = (
        8308,
        "The state file of a load cannot be read.",
        "The load does not continue.",
        "Use the version that wrote it; or remove the file and the targets, and load again.",
    )

    # What a source remembers.

    SOURCE_TAKEN = (
        8401,
        "Another process has this source.",
        "This one writes nothing. A source that died is forgotten in some seconds.",
        "Run one process for each `source-id`; a second one waits for the first.",
    )
    SOURCE_START = (
        8402,
        "The place at which a source is to begin cannot be used.",
        "The source does not begin.",
        "Write it as the hint says: a file and position, GTIDs, or a time.",
    )
    SOURCE_FILES = (
        8403,
        "A file of a source cannot be written.",
        "The source stops or waits; what is committed stays.",
        "Make room on its disk, and see that its account may write there.",
    )
    SOURCE_STATE_DAMAGED = (
        8404,
        "The journal of a source is damaged, or what its load has is not known any more.",
        "The source does not start.",
        "Look at the disk, or put the file back. The journal says which transactions were being"
        " committed: compare the tables by `penstock verify` before you remove it. What a load has"
        " is known again after `mysql-source reload --all`.",
    )
    RELOAD_WAITS = (
        8405,
        "A table is to be loaded again, and another one goes to the same place.",
        "The reload waits until the source is far enough.",
        "If this stays, ask for the reload again.",
    )

    # A TiDB as the upstream.

    TIKV_AWAY = (
        9001,
        "No TiKV answers about a transaction.",
        "The Prewrite stays open, and so the merge waits; the Pump asks again.",
        "See that TiKV and PD run, and that the Pump reaches them.",
    )
    TIKV_ANSWER = (
        9002,
        "TiKV's answer about a transaction is not one that can be acted on.",
        "The Prewrite stays open, and so the merge waits. Nothing is guessed.",
        "Look at the log of the TiKV. A newer TiKV may need a newer Pump.",
    )
    TIDB_AWAY = (
        9003,
        "No status port of a TiDB answers.",
        "The Drainer waits before the DDL, and asks again.",
        "See that a TiDB runs, that `etcd-urls` is its PD's, and that its status port can be"
        " reached from the Drainer.",
    )
    TIDB_STATUS_PORT = (
        9004,
        "What a TiDB's status port answers is not its history of DDL.",
        _DRAINER_STOPS,
        "Is this a TiDB's status port? Its `[status]` settings and its log say more.",
    )
    TIDB_DDL_WAITS = (
        9005,
        "A DDL of the TiDB is under way while a Drainer begins without a checkpoint.",
        "The Drainer waits for its end.",
        "Nothing, as a rule. If the DDL was cancelled midway, any further one, as CREATE DATABASE,"
        " ends the wait.",
    )
    TIDB_AND_OTHERS = (
        9006,
        "A TiDB and other writers are to write into one cluster.",
        _NOT_STARTED,
        "Give the others a cluster of their own: one stream has one source of schemas.",
    )
    TIDB_JOB = (
        9007,
        "A statement names a job of the TiDB, which is another one downstream.",
        _DRAINER_STOPS,
        "Bring the table back downstream by hand, as it is upstream, then track the DDL.",
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
"""What the codes are about, by the first of their four digits."""

_SHOWN = re.compile(r"\[(PS-\d{4})\]")
_BY_NAME: Final = {str(code): code for code in Code}


def code_named(name: str) -> Code | None:
    """Return the code that is called so, as PS-1001; None if this version does not know it."""
    return _BY_NAME.get(name)


def code_in(text: str) -> Code | None:
    """Return the last code that a text shows, as [PS-1001]; None if it shows none that is known."""
    found = _SHOWN.findall(text)
    return code_named(found[-1]) if found else None

"""Error codes: each error that an operator can see has a number whose meaning never changes.

Every error carries a code (`penstock.errors`). An error that is shown to a person ends with its
code: `[PS-1001]`. Raise sites share a code if cause and remedy are the same for an operator.
`deploy/error_texts.toml` contains the meaning, the effect and the remedy of each code;
`deploy/site.py` generates a page of the documentation for each subject from them.

A number is never reused: `tests/unit/penstock/codes.txt` records all codes that were ever assigned,
including former codes, each with its successor. A new code takes the next free number of its
subject:

    1xxx  programs, settings, commands     6xxx  the Drainer and Spark
    2xxx  etcd, nodes, time                7xxx  the downstream
    3xxx  a Pump and its disk              8xxx  a MySQL or MariaDB as the upstream
    4xxx  binlogs, rows, writers           9xxx  a TiDB as the upstream
    5xxx  DDL and the schema
"""

from enum import Enum, unique
from typing import Final


@unique
class Code(Enum):
    """An error code; its value is its number."""

    def __str__(self) -> str:
        """Return the form that users see: PS-1001."""
        return f"PS-{self.value}"

    # Programs and their settings.

    SETTING_UNKNOWN = 1001
    SETTING_VALUE = 1002
    ADDRESS_TAKEN = 1008
    PACKAGE_MISSING = 1009
    PATH_UNUSABLE = 1010
    CHILD_FAILED = 1012
    CLOSED = 1014
    DEFECT = 1015
    ASSERTIONS_OFF = 1016

    # Filters and routes.

    FILTER_RULE = 1101
    ROUTE_CONFLICT = 1104
    FILTER_STOPS = 1107

    # TLS and passwords.

    TLS_FILES = 1201
    TLS_NOT_TRUSTED = 1202
    TLS_MISMATCH = 1204
    PASSWORD_UNREADABLE = 1205

    # Commands.

    COMMAND_INVALID = 1302
    NODE_UNKNOWN = 1303
    NODE_AWAY = 1304
    NODE_STATE = 1305
    NODE_OTHER = 1306
    NODE_REFUSES = 1307
    NODE_HOLDS_BINLOGS = 1309
    NOT_CONFIRMED = 1311
    WAIT_ENDED = 1312
    OVERRIDE_INVALID = 1314

    # Etcd and the nodes of a cluster.

    ETCD_AWAY = 2001
    ETCD_REFUSES = 2002
    ETCD_VALUE = 2003
    CLUSTER_MISMATCH = 2004
    NODE_ID_TAKEN = 2005
    DATA_DIR_OTHER = 2006
    LOST_BINLOGS_NEEDED = 2010
    DRAINER_NOT_NOTIFIED = 2011

    # Time.

    ORACLE_AWAY = 2101

    # The DDL lock and the DDL history.

    LEASE_LOST = 2201
    DDL_LOCKED = 2202
    DDL_HISTORY = 2205

    # A Pump's log on disk.

    SEGMENT_DAMAGED = 3001
    SEGMENT_CUT_SHORT = 3002
    SEGMENT_VERSION = 3004
    LOG_WRITE_FAILED = 3005
    DISK_FAILING = 3006
    INDEX_DAMAGED = 3007
    DISK_FULL = 3009

    # Requests that a Pump rejects.

    PUMP_OVERLOADED = 3102
    PUMP_NOT_ONLINE = 3103
    BINLOG_TOO_LARGE = 3104
    BINLOG_INVALID = 3105
    CONTRADICTION = 3106
    PREWRITE_MISSING = 3107
    BINLOG_PURGED = 3108

    # Resolvers: the outcome of a transaction.

    RESOLVER_AWAY = 3202
    RESOLVER_OUTBOX = 3203

    # Requests for a replica that its Pump rejects.

    COPY_OTHER_DISK = 3301
    COPY_MALFORMED = 3302
    COPY_NOT_FOLLOWED = 3303

    # A Pump's own log and its replicas.

    TOO_FEW_COPIES = 3304
    LOG_DEPOSED = 3305
    LOG_DISPLACED = 3306
    LOG_ENTRY_GONE = 3307
    BYTES_NOT_HERE = 3308
    LOG_OLDER = 3311
    LOG_PUT_BACK = 3312

    # Binlogs and rows.

    BINLOG_UNDECODABLE = 4001
    ROW_REFUSED = 4004
    TABLE_KEY = 4006

    # Writers.

    WRITER_MISUSED = 4103
    NO_PUMP = 4108
    PREWRITE_NOT_TAKEN = 4109
    PREWRITE_REFUSED = 4110
    TRANSACTION_ROLLED_BACK = 4111
    COMMIT_LATE = 4112
    OUTCOME_UNKNOWN = 4113
    COMMIT_ORDER_BROKEN = 4114

    # The outbox of an application's database.

    OUTBOX_MISUSED = 4201
    OUTBOX_ROLLED_BACK = 4206

    # DDL statements.

    DDL_UNREADABLE = 5001
    DDL_UNSUPPORTED = 5002
    DDL_OBJECT = 5004
    DDL_DEFINITION = 5007
    DDL_DEFAULT = 5008
    CHARSET = 5009
    DDL_ROLLED_BACK = 5013

    # The Drainer.

    PUMP_CAME_BACK = 6002
    PULL_REFUSED = 6004
    PULL_MALFORMED = 6005
    SCHEMA_UNKNOWN = 6009
    CHECKPOINT_INCONSISTENT = 6013
    LOOPBACK_TABLE = 6014
    ORIGIN_GAP = 6015

    # Spark.

    JAVA = 6101
    SPARK_ENDED = 6102
    SPARK_TASK = 6103
    SPARK_VERSION = 6104

    # The Drainer's relay log.

    DRAINER_FILE_DAMAGED = 6201

    # Programs that read the stream.

    READER_MISUSED = 6301

    # The downstream.

    URL_INVALID = 7001
    SINK_AWAY = 7002
    SINK_REFUSES = 7003
    SINK_GRANT = 7005
    ROW_TOO_LARGE = 7007
    SINK_DDL_MOMENT = 7008
    SINK_DDL_DOUBT = 7009
    CHECKPOINT_DAMAGED = 7101
    CHECKPOINT_CLUSTER = 7102
    CHECKPOINT_TAKEN = 7103
    OVERRIDES_CHANGED = 7104
    CHECKPOINT_GONE = 7105
    SINK_DDL = 7201
    SINK_FILE = 7202

    # Binlog files, and restores from them.

    FILES_DAMAGED = 7301
    FILES_GAP = 7303

    # Kafka.

    KAFKA_TOPIC = 7401
    KAFKA_TRANSACTIONS = 7404

    # Delta Lake.

    DELTA_TABLE = 7501
    SINK_SETTING = 7505

    # A MySQL or MariaDB server.

    SERVER_AWAY = 8002
    SERVER_REFUSES = 8003
    SERVER_GRANT = 8004
    SERVER_SETTING = 8005
    SERVER_ID_TAKEN = 8006
    SERVER_POSITION_LOST = 8008
    SERVER_RESET = 8010
    ENGINE_WITHOUT_TRANSACTIONS = 8012
    FOREIGN_KEY_ACTIONS = 8014

    # The binlog of a MySQL or MariaDB server.

    EVENT_UNKNOWN = 8101
    EVENT_MALFORMED = 8102
    ROWS_EVENT = 8103
    BINLOG_INCOMPLETE = 8106
    XA_PREPARED = 8108
    ONLINE_DDL = 8111
    TABLE_DIFFERS = 8112

    # The relay log of a source.

    RELAY_UNUSABLE = 8201
    RELAY_DAMAGED = 8202

    # The initial load.

    LOAD_DISTURBED = 8301
    LOAD_NOT_CONTINUED = 8302
    LOAD_TARGET = 8307

    # The state of a source.

    SOURCE_TAKEN = 8401
    POSITION_INVALID = 8402
    SOURCE_STATE_DAMAGED = 8404

    # A TiDB as the upstream.

    TIKV_ANSWER = 9002
    TIDB_AWAY = 9003
    TIDB_STATUS_PORT = 9004
    TIDB_DDL_WAITS = 9005


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

_BY_NAME: Final = {str(code): code for code in Code}


def code_named(name: str) -> Code | None:
    """Return the code with a name such as PS-1001; None if this version does not know it."""
    return _BY_NAME.get(name)

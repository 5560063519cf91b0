from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WriteBatch(_message.Message):
    __slots__ = ("cluster_id", "seq", "payloads")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    seq: int
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, cluster_id: _Optional[int] = ..., seq: _Optional[int] = ..., payloads: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("index", "code", "message")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Refusal.Code]
        RETRYABLE: _ClassVar[Refusal.Code]
        NOT_ONLINE: _ClassVar[Refusal.Code]
        RESOURCE_EXHAUSTED: _ClassVar[Refusal.Code]
        INVALID: _ClassVar[Refusal.Code]
        CLUSTER_MISMATCH: _ClassVar[Refusal.Code]
        SCHEMA_CHANGED: _ClassVar[Refusal.Code]
    UNKNOWN: Refusal.Code
    RETRYABLE: Refusal.Code
    NOT_ONLINE: Refusal.Code
    RESOURCE_EXHAUSTED: Refusal.Code
    INVALID: Refusal.Code
    CLUSTER_MISMATCH: Refusal.Code
    SCHEMA_CHANGED: Refusal.Code
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    index: int
    code: Refusal.Code
    message: str
    def __init__(self, index: _Optional[int] = ..., code: _Optional[_Union[Refusal.Code, str]] = ..., message: _Optional[str] = ...) -> None: ...

class DecidedBatch(_message.Message):
    __slots__ = ("cluster_id", "schema_version", "payloads")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    schema_version: int
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, cluster_id: _Optional[int] = ..., schema_version: _Optional[int] = ..., payloads: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DecidedReply(_message.Message):
    __slots__ = ("commit_ts", "refusal")
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    commit_ts: _containers.RepeatedScalarFieldContainer[int]
    refusal: Refusal
    def __init__(self, commit_ts: _Optional[_Iterable[int]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class WriteAck(_message.Message):
    __slots__ = ("seq", "refusals")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, seq: _Optional[int] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class WritePiece(_message.Message):
    __slots__ = ("cluster_id", "start_ts", "bytes", "data")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    start_ts: int
    bytes: int
    data: bytes
    def __init__(self, cluster_id: _Optional[int] = ..., start_ts: _Optional[int] = ..., bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("cluster_id", "after_ts", "batch_bytes_max", "drainer_id", "pieces", "metadata_only")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_TS_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    DRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    METADATA_ONLY_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    after_ts: int
    batch_bytes_max: int
    drainer_id: str
    pieces: bool
    metadata_only: bool
    def __init__(self, cluster_id: _Optional[int] = ..., after_ts: _Optional[int] = ..., batch_bytes_max: _Optional[int] = ..., drainer_id: _Optional[str] = ..., pieces: _Optional[bool] = ..., metadata_only: _Optional[bool] = ...) -> None: ...

class PullBatch(_message.Message):
    __slots__ = ("payloads", "commit_ts", "piece", "sizes", "start_ts")
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    commit_ts: _containers.RepeatedScalarFieldContainer[int]
    piece: PullPiece
    sizes: _containers.RepeatedScalarFieldContainer[int]
    start_ts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, payloads: _Optional[_Iterable[bytes]] = ..., commit_ts: _Optional[_Iterable[int]] = ..., piece: _Optional[_Union[PullPiece, _Mapping]] = ..., sizes: _Optional[_Iterable[int]] = ..., start_ts: _Optional[_Iterable[int]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("cluster_id", "commit_ts", "drainer_id")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    DRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    commit_ts: _containers.RepeatedScalarFieldContainer[int]
    drainer_id: str
    def __init__(self, cluster_id: _Optional[int] = ..., commit_ts: _Optional[_Iterable[int]] = ..., drainer_id: _Optional[str] = ...) -> None: ...

class PullPiece(_message.Message):
    __slots__ = ("commit_ts", "bytes", "offset", "data")
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    commit_ts: int
    bytes: int
    offset: int
    data: bytes
    def __init__(self, commit_ts: _Optional[int] = ..., bytes: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("node_id", "state", "max_commit_ts", "details", "newest_ddl", "facts")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MAX_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_DDL_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    state: str
    max_commit_ts: int
    details: _containers.ScalarMap[str, str]
    newest_ddl: NewestDdl
    facts: str
    def __init__(self, node_id: _Optional[str] = ..., state: _Optional[str] = ..., max_commit_ts: _Optional[int] = ..., details: _Optional[_Mapping[str, str]] = ..., newest_ddl: _Optional[_Union[NewestDdl, _Mapping]] = ..., facts: _Optional[str] = ...) -> None: ...

class NewestDdl(_message.Message):
    __slots__ = ("job_id", "commit_ts", "query")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    job_id: int
    commit_ts: int
    query: str
    def __init__(self, job_id: _Optional[int] = ..., commit_ts: _Optional[int] = ..., query: _Optional[str] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class PauseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("node_id", "skip_drainers", "empty_disk")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SKIP_DRAINERS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_DISK_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    skip_drainers: _containers.RepeatedScalarFieldContainer[str]
    empty_disk: bool
    def __init__(self, node_id: _Optional[str] = ..., skip_drainers: _Optional[_Iterable[str]] = ..., empty_disk: _Optional[bool] = ...) -> None: ...

class CloseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MoveLogRequest(_message.Message):
    __slots__ = ("node_id", "to")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    to: str
    def __init__(self, node_id: _Optional[str] = ..., to: _Optional[str] = ...) -> None: ...

class MoveLogReply(_message.Message):
    __slots__ = ("to",)
    TO_FIELD_NUMBER: _ClassVar[int]
    to: str
    def __init__(self, to: _Optional[str] = ...) -> None: ...

class HandOverRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class HandOverReply(_message.Message):
    __slots__ = ("standbys",)
    STANDBYS_FIELD_NUMBER: _ClassVar[int]
    standbys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, standbys: _Optional[_Iterable[str]] = ...) -> None: ...

class AdvanceRequest(_message.Message):
    __slots__ = ("cluster_id", "past_ts")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    PAST_TS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    past_ts: int
    def __init__(self, cluster_id: _Optional[int] = ..., past_ts: _Optional[int] = ...) -> None: ...

class AdvanceReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TriggerGcRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TriggerGcReply(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class ScrubRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class ScrubReply(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class LogName(_message.Message):
    __slots__ = ("cluster_id", "node_id", "disk")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    node_id: str
    disk: str
    def __init__(self, cluster_id: _Optional[int] = ..., node_id: _Optional[str] = ..., disk: _Optional[str] = ...) -> None: ...

class LogLink(_message.Message):
    __slots__ = ("number", "epoch", "end", "epoch_id")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    number: int
    epoch: int
    end: int
    epoch_id: int
    def __init__(self, number: _Optional[int] = ..., epoch: _Optional[int] = ..., end: _Optional[int] = ..., epoch_id: _Optional[int] = ...) -> None: ...

class LogLinks(_message.Message):
    __slots__ = ("links",)
    LINKS_FIELD_NUMBER: _ClassVar[int]
    links: _containers.RepeatedCompositeFieldContainer[LogLink]
    def __init__(self, links: _Optional[_Iterable[_Union[LogLink, _Mapping]]] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("log", "epoch", "ask", "append")
    LOG_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    log: LogName
    epoch: int
    ask: LogAsk
    append: LogAppend
    def __init__(self, log: _Optional[_Union[LogName, _Mapping]] = ..., epoch: _Optional[int] = ..., ask: _Optional[_Union[LogAsk, _Mapping]] = ..., append: _Optional[_Union[LogAppend, _Mapping]] = ...) -> None: ...

class LogAsk(_message.Message):
    __slots__ = ("takes_damaged", "confirms")
    TAKES_DAMAGED_FIELD_NUMBER: _ClassVar[int]
    CONFIRMS_FIELD_NUMBER: _ClassVar[int]
    takes_damaged: bool
    confirms: bool
    def __init__(self, takes_damaged: _Optional[bool] = ..., confirms: _Optional[bool] = ...) -> None: ...

class LogAppend(_message.Message):
    __slots__ = ("segment", "segment_epoch", "offset", "previous", "instead_of", "needed", "data", "crc", "damage", "epoch_id")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    INSTEAD_OF_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_ID_FIELD_NUMBER: _ClassVar[int]
    segment: int
    segment_epoch: int
    offset: int
    previous: LogLink
    instead_of: LogLinks
    needed: int
    data: bytes
    crc: int
    damage: int
    epoch_id: int
    def __init__(self, segment: _Optional[int] = ..., segment_epoch: _Optional[int] = ..., offset: _Optional[int] = ..., previous: _Optional[_Union[LogLink, _Mapping]] = ..., instead_of: _Optional[_Union[LogLinks, _Mapping]] = ..., needed: _Optional[int] = ..., data: _Optional[bytes] = ..., crc: _Optional[int] = ..., damage: _Optional[int] = ..., epoch_id: _Optional[int] = ...) -> None: ...

class PrependPiece(_message.Message):
    __slots__ = ("log", "epoch", "link", "data")
    LOG_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    log: LogName
    epoch: int
    link: LogLink
    data: bytes
    def __init__(self, log: _Optional[_Union[LogName, _Mapping]] = ..., epoch: _Optional[int] = ..., link: _Optional[_Union[LogLink, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("log", "segment", "offset", "bytes", "edges")
    LOG_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    log: LogName
    segment: int
    offset: int
    bytes: int
    edges: bool
    def __init__(self, log: _Optional[_Union[LogName, _Mapping]] = ..., segment: _Optional[int] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ..., edges: _Optional[bool] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("data", "crc")
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    crc: int
    def __init__(self, data: _Optional[bytes] = ..., crc: _Optional[int] = ...) -> None: ...

class FollowReply(_message.Message):
    __slots__ = ("epoch", "standing", "have", "refused_by", "damaged")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_BY_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    standing: LogLinks
    have: LogHave
    refused_by: int
    damaged: int
    def __init__(self, epoch: _Optional[int] = ..., standing: _Optional[_Union[LogLinks, _Mapping]] = ..., have: _Optional[_Union[LogHave, _Mapping]] = ..., refused_by: _Optional[int] = ..., damaged: _Optional[int] = ...) -> None: ...

class LogHave(_message.Message):
    __slots__ = ("segment", "offset", "first")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    segment: int
    offset: int
    first: int
    def __init__(self, segment: _Optional[int] = ..., offset: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...

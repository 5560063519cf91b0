"""Codec: binlogs to protobuf bytes and back; the messages are those of `proto/binlog.proto`.

A Prewrite's bytes followed by its Commit's bytes decode as the merged binlog, because protobuf
keeps the last value of a scalar. A Pump thus joins the two without parsing either. So a Commit must
not carry a zero for a field that its Prewrite has: zeros are left out.
"""

from google.protobuf.message import DecodeError

from penstock.codes import Code
from penstock.errors import Malformed
from penstock.pb import binlog_pb2 as pb
from penstock.wire.binlog import (
    Binlog,
    BinlogType,
    MutationType,
    Origin,
    PrewriteValue,
    TableMutation,
)

_HINT = "the writer and the Pumps must speak the same binlog.proto"


def encode_binlog(binlog: Binlog) -> bytes:
    """Return the serialized `binlog.Binlog`; timestamps and type are always present, even zero."""
    message = pb.Binlog(
        tp=int(binlog.tp),  # type: ignore[arg-type]  # The stub wants its own enum class.
        start_ts=binlog.start_ts,
        commit_ts=binlog.commit_ts,
    )
    if binlog.ddl_job_id:
        message.ddl_job_id = binlog.ddl_job_id
    if binlog.prewrite_key:
        message.prewrite_key = binlog.prewrite_key
    if binlog.prewrite_value:
        message.prewrite_value = binlog.prewrite_value
    if binlog.ddl_query:
        message.ddl_query = binlog.ddl_query
    if binlog.ddl_schema_state:
        message.ddl_schema_state = binlog.ddl_schema_state
    if binlog.origin is not None:
        message.origin.CopyFrom(_origin_message(binlog.origin))
    return message.SerializeToString()


def decode_binlog(data: bytes) -> Binlog:
    """Decode a binlog; raise `Malformed` for anything else, including obsolete types."""
    try:
        message = pb.Binlog.FromString(data)
    except DecodeError as error:
        raise Malformed(
            f"undecodable binlog of {len(data)} bytes: {error}", _HINT, Code.BINLOG_UNDECODABLE
        ) from error
    if message.tp > BinlogType.ROLLBACK:
        raise Malformed(f"binlog of the obsolete type {message.tp}", _HINT, Code.BINLOG_UNDECODABLE)
    return Binlog(
        tp=BinlogType(message.tp),
        start_ts=message.start_ts,
        commit_ts=message.commit_ts,
        prewrite_key=message.prewrite_key,
        prewrite_value=message.prewrite_value,
        ddl_query=message.ddl_query,
        ddl_job_id=message.ddl_job_id,
        ddl_schema_state=message.ddl_schema_state,
        origin=origin_of(message.origin) if message.HasField("origin") else None,
    )


def decode_origin(data: bytes) -> Origin:
    try:
        return origin_of(pb.Origin.FromString(data))
    except DecodeError as error:
        raise Malformed(f"undecodable origin: {error}", _HINT, Code.BINLOG_UNDECODABLE) from error


def origin_of(message: pb.Origin) -> Origin:
    return Origin(
        source=message.source,
        epoch=message.epoch,
        file=message.file,
        position=message.position,
        gtid=message.gtid,
        previous=(message.previous_file, message.previous_position)
        if message.HasField("previous_position")
        else None,
        history=message.history,
        after=(message.after_epoch, message.after_file, message.after_position)
        if message.HasField("after_position")
        else None,
    )


def _origin_message(origin: Origin) -> pb.Origin:
    file, position = origin.previous or (None, None)
    after_epoch, after_file, after_position = origin.after or (None, None, None)
    return pb.Origin(
        source=origin.source,
        epoch=origin.epoch,
        file=origin.file,
        position=origin.position,
        gtid=origin.gtid or None,
        previous_file=file,
        previous_position=position,
        history=origin.history or None,
        after_epoch=after_epoch,
        after_file=after_file,
        after_position=after_position,
    )


def encode_prewrite_value(value: PrewriteValue) -> bytes:
    message = pb.PrewriteValue(schema_version=value.schema_version)
    for mutation in value.mutations:
        _add(message, mutation)
    return message.SerializeToString()


def encode_mutation_field(mutation: TableMutation) -> bytes:
    """Encode one mutation as a `PrewriteValue` field; concatenated fields form a value."""
    message = pb.PrewriteValue()
    _add(message, mutation)
    return message.SerializeToString()


def decode_prewrite_value(data: bytes) -> PrewriteValue:
    """Return the row changes in `data`; raise `Malformed` when lists and sequence disagree."""
    try:
        message = pb.PrewriteValue.FromString(data)
    except DecodeError as error:
        raise Malformed(
            f"undecodable row changes: {error}", _HINT, Code.BINLOG_UNDECODABLE
        ) from error
    return PrewriteValue(
        schema_version=message.schema_version,
        mutations=tuple(_mutation(m) for m in message.mutations),
    )


def _add(message: pb.PrewriteValue, mutation: TableMutation) -> None:
    added = message.mutations.add()
    added.table_id = mutation.table_id
    if mutation.inserted_rows:  # An empty list is most of them, and costs as much.
        added.inserted_rows.extend(mutation.inserted_rows)
    if mutation.updated_rows:
        added.updated_rows.extend(mutation.updated_rows)
    if mutation.deleted_rows:
        added.deleted_rows.extend(mutation.deleted_rows)
    added.sequence.extend(mutation.sequence)  # type: ignore[arg-type]  # Of the stub's own class.


def _mutation(message: pb.TableMutation) -> TableMutation:
    try:
        sequence = tuple(MutationType(kind) for kind in message.sequence)
    except ValueError as error:
        raise Malformed(
            f"obsolete row change in table {message.table_id}: {error}",
            _HINT,
            Code.BINLOG_UNDECODABLE,
        ) from error
    mutation = TableMutation(
        table_id=message.table_id,
        inserted_rows=tuple(message.inserted_rows),
        updated_rows=tuple(message.updated_rows),
        deleted_rows=tuple(message.deleted_rows),
        sequence=sequence,
    )
    counts = (len(mutation.inserted_rows), len(mutation.updated_rows), len(mutation.deleted_rows))
    listed = tuple(sequence.count(kind) for kind in MutationType)
    if counts != listed or message.deleted_ids or message.deleted_pks:
        raise Malformed(
            f"table {message.table_id}: the sequence has {listed} inserts, updates and deletes,"
            f" the lists hold {counts}",
            _HINT,
            Code.BINLOG_UNDECODABLE,
        )
    return mutation

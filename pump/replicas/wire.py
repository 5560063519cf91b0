"""Wire: encodes the protocol of primaries and replicas as messages of `penstock.Replica`.

The core knows places only. On the wire an Append contains its bytes, and its end follows from their
length.
"""

from __future__ import annotations

from typing import NamedTuple

from google_crc32c import value

from penstock.codes import Code
from penstock.errors import Malformed
from penstock.log.segments import Place
from penstock.pb import penstock_pb2 as pb
from pump.replicas.chain import Link
from pump.replicas.messages import Answer, Append, Ask, Damaged, Have, Refusal, Standing

FOLLOW_METHOD = "/penstock.Replica/Follow"
PREPEND_METHOD = "/penstock.Replica/Prepend"
READ_METHOD = "/penstock.Replica/Read"
READ_BYTES_MAX = 1 << 20
"""The number of bytes of a segment that are sent at a time to a disk that repairs corruption."""


class Name(NamedTuple):
    """Identifies a replica: the log, the cluster, and the disk of the replica."""

    cluster_id: int
    node_id: str
    disk: str

    def message(self) -> pb.LogName:
        return pb.LogName(cluster_id=self.cluster_id, node_id=self.node_id, disk=self.disk)

    @classmethod
    def of(cls, message: pb.LogName) -> Name:
        return cls(message.cluster_id, message.node_id, message.disk)


class SignOfLife(NamedTuple):
    """Reports that the primary of this epoch runs; it is answered by nothing, or by a refusal."""

    epoch: int


Followed = Ask | Append | SignOfLife


def encode_request(name: Name, request: Followed, data: bytes = b"") -> bytes:
    """Return a `FollowRequest`; `data` are the bytes of an Append."""
    message = pb.FollowRequest(log=name.message(), epoch=request.epoch)
    if isinstance(request, Ask):
        message.ask.takes_damaged = request.takes_damaged
        message.ask.SetInParent()
    elif isinstance(request, Append):
        message.append.CopyFrom(_append_message(request, data))
    return message.SerializeToString()


def decode_request(data: bytes) -> tuple[Name, Followed, bytes]:
    """Parse a `FollowRequest`; raise `DecodeError`, or `Malformed` if bytes have changed."""
    message = pb.FollowRequest.FromString(data)
    name, kind = Name.of(message.log), message.WhichOneof("request")
    if kind == "append":
        return name, _append_of(message.epoch, message.append), message.append.data
    if kind == "ask":
        return name, Ask(message.epoch, message.ask.takes_damaged), b""
    return name, SignOfLife(message.epoch), b""


def encode_answer(epoch: int, answer: Answer | None) -> bytes:
    """Return a `FollowReply`; None answers a heartbeat."""
    reply = pb.FollowReply(epoch=epoch)
    if isinstance(answer, Standing):
        reply.standing.CopyFrom(_links_message(answer.links))
    elif isinstance(answer, Have):
        place = answer.place
        reply.have.CopyFrom(
            pb.LogHave(segment=place.segment, offset=place.offset, first=answer.first)
        )
    elif isinstance(answer, Damaged):
        reply.damaged = answer.damage
    elif isinstance(answer, Refusal):
        reply.refused_by = answer.promised
    return reply.SerializeToString()


def decode_answer(data: bytes) -> Answer | None:
    """Read a `FollowReply`; raises `DecodeError`."""
    reply = pb.FollowReply.FromString(data)
    kind = reply.WhichOneof("answer")
    if kind == "standing":
        return Standing(reply.epoch, _links_of(reply.standing))
    if kind == "have":
        have = reply.have
        return Have(reply.epoch, Place(have.segment, have.offset), have.first)
    if kind == "damaged":
        return Damaged(reply.epoch, reply.damaged)
    return Refusal(reply.refused_by) if kind == "refused_by" else None


class Stretch(NamedTuple):
    """Bytes of one segment, from an offset on."""

    segment: int
    offset: int
    length: int
    edges: bool = False
    """Instead: the headers of the oldest and of the newest segment."""


def encode_read(name: Name, wanted: Stretch) -> bytes:
    request = pb.ReadRequest(log=name.message())
    request.segment, request.offset, request.bytes, request.edges = wanted
    return request.SerializeToString()


def decode_read(data: bytes) -> tuple[Name, Stretch]:
    """Parse a `ReadRequest`, its length limited to one reply; raises `DecodeError`."""
    request = pb.ReadRequest.FromString(data)
    length = min(request.bytes, READ_BYTES_MAX)
    stretch = Stretch(request.segment, request.offset, length, request.edges)
    return Name.of(request.log), stretch


def encode_bytes(data: bytes) -> bytes:
    return pb.ReadReply(data=data, crc=value(data)).SerializeToString()


def decode_bytes(data: bytes) -> bytes:
    """Parse a `ReadReply`; raise `DecodeError`, or `Malformed` if bytes have changed."""
    reply = pb.ReadReply.FromString(data)
    if reply.crc != value(reply.data):
        raise Malformed(
            "bytes of a segment have changed on the way: their CRC is another one",
            hint="they are asked for again; if it lasts, check memory and network of both machines",
            code=Code.COPY_MALFORMED,
        )
    return reply.data


def link_message(link: Link) -> pb.LogLink:
    return pb.LogLink(number=link.number, epoch=link.epoch, end=link.end, epoch_id=link.epoch_id)


def link_of(message: pb.LogLink) -> Link:
    return Link(message.number, message.epoch, message.end, message.epoch_id)


def _append_message(request: Append, data: bytes) -> pb.LogAppend:
    message = pb.LogAppend(
        segment=request.segment,
        segment_epoch=request.segment_epoch,
        offset=request.offset,
        needed=request.needed,
        data=data,
        crc=value(data),
        damage=request.damage,
        epoch_id=request.epoch_id,
    )
    if request.previous is not None:
        message.previous.CopyFrom(link_message(request.previous))
    if request.instead_of is not None:
        message.instead_of.CopyFrom(_links_message(request.instead_of))
    return message


def _append_of(epoch: int, message: pb.LogAppend) -> Append:
    if message.crc != value(message.data):
        raise Malformed(
            f"the bytes for segment {message.segment} from offset {message.offset} on have changed"
            " on the way: their CRC is another one",
            hint="they are sent again; if it lasts, check memory and network of both machines",
            code=Code.COPY_MALFORMED,
        )
    return Append(
        epoch=epoch,
        segment=message.segment,
        segment_epoch=message.segment_epoch,
        offset=message.offset,
        end=message.offset + len(message.data),
        previous=link_of(message.previous) if message.HasField("previous") else None,
        instead_of=_links_of(message.instead_of) if message.HasField("instead_of") else None,
        needed=message.needed,
        damage=message.damage,
        epoch_id=message.epoch_id,
    )


def _links_message(links: tuple[Link, ...]) -> pb.LogLinks:
    return pb.LogLinks(links=map(link_message, links))


def _links_of(message: pb.LogLinks) -> tuple[Link, ...]:
    return tuple(map(link_of, message.links))

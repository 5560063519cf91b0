"""Messages between a primary and the replicas of its log, and the actions that either asks for.

                    Ask(epoch) ──────────────>
    primary         <────────────── Standing(links)          where the replica's log is
                    Append(bytes of one segment) ────>       written and synced, then
                    <────────────── Have(place, first)
                    Prepend(an older segment) ───────>       written and synced, then
                    <────────────── Have(place, first)
                    Ask(epoch, confirms) ────>               nothing of a later epoch is promised
                    <────────────── Confirmed(confirms)
                    <────────────── Refusal(promised)        to anything of an earlier epoch
                    <────────────── Damaged(damage)          to an Ask, instead of a Standing

The core looks at places only; the bytes of an Append or a Prepend travel beside it. On the wire,
in the messages of `penstock.Replica`, an Append contains its bytes, and its end follows from their
length.
"""

from __future__ import annotations

from typing import NamedTuple

from google_crc32c import value

from penstock.cluster.log_entry import Copy, LogEntry
from penstock.codes import Code
from penstock.errors import Malformed
from penstock.log.segments import Place
from penstock.pb import penstock_pb2 as pb
from pump.replication.protocol.chain import Link


class Ask(NamedTuple):
    """Accept nothing of an earlier epoch from now on, and report the position of the log."""

    epoch: int
    takes_damaged: bool = True
    """False for the primary of an older Penstock, which does not know that answer."""
    confirms: int = 0
    """The number of a question of `Primary.confirm`; the position is not asked for then."""


class Append(NamedTuple):
    """Bytes of one segment, from `offset` on; bytes from 0 start with its header."""

    epoch: int
    segment: int
    segment_epoch: int
    offset: int
    end: int
    previous: Link | None
    """With offset 0: the segment before, up to where it counts; None at the log's start."""
    instead_of: tuple[Link, ...] | None
    """With offset 0: start a replica here, if the existing log is still this log."""
    needed: int
    """Earlier segments may go."""
    damage: int = 0
    """With offset 0: start a replica here, if the existing replica still has this damage."""
    epoch_id: int = 0
    """The id of `segment_epoch`."""

    def is_of(self, link: Link) -> bool:
        return link.is_same(Link(self.segment, self.segment_epoch, 0, self.epoch_id))


class Prepend(NamedTuple):
    """A whole segment, for a replica that starts with its successor."""

    epoch: int
    link: Link


class ReplicaState(NamedTuple):
    """The log of a replica that has promised `epoch`; it need not agree with the primary's."""

    epoch: int
    links: tuple[Link, ...]


class Have(NamedTuple):
    """From segment `first` to `place`, the log of this epoch's primary is synced here."""

    epoch: int
    place: Place
    first: int


class Confirmed(NamedTuple):
    """The replica had promised no later epoch when it was asked for the `confirms`th time."""

    epoch: int
    confirms: int


class Damaged(NamedTuple):
    """The replica cannot be opened, and no other disk has repaired it."""

    epoch: int
    damage: int
    """A number that no other damage has; it differs after each start."""


class Refusal(NamedTuple):
    """The request is of an earlier epoch than `promised`."""

    promised: int


Request = Ask | Append | Prepend
Answer = ReplicaState | Have | Confirmed | Damaged | Refusal


class Reply(NamedTuple):
    """Answer the primary that asked."""

    answer: Answer


class Cut(NamedTuple):
    """Drop everything after `place`, the last segment first, durably."""

    place: Place


class Clear(NamedTuple):
    """Drop the whole replica, the last segment first, durably."""


class SetAside(NamedTuple):
    """Set the files of a damaged replica aside, and start an empty one, durably."""


class Write(NamedTuple):
    """Write the request's bytes, from `offset` of `segment` on; from 0 on, create it."""

    segment: int
    epoch: int
    offset: int
    epoch_id: int = 0


class WriteBefore(NamedTuple):
    """Write the request's whole segment, durably, before the first segment."""

    link: Link


class Sync(NamedTuple):
    """Sync everything that was written."""


class DropBefore(NamedTuple):
    """Drop the segments before `segment`, oldest first."""

    segment: int


class Begin(NamedTuple):
    """Seal the live segment at its end, and start segment `number` of `epoch`, durably."""

    number: int
    epoch: int
    epoch_id: int = 0


class Send(NamedTuple):
    """Send a request, with the bytes that it is about."""

    to: Copy
    request: Request


class Acknowledge(NamedTuple):
    """Everything before `place` may be answered, indexed and streamed."""

    place: Place


class Swap(NamedTuple):
    """Ask etcd to put `entry`, if the key is still at `revision`."""

    revision: int
    entry: LogEntry


class ReadEntry(NamedTuple):
    """Ask etcd for the entry, by a linearizable read."""


class StepDown(NamedTuple):
    """Stop serving: another primary exists, or may exist."""

    why: str


Action = (
    Reply
    | Cut
    | Clear
    | SetAside
    | Write
    | WriteBefore
    | Sync
    | DropBefore
    | Begin
    | Send
    | Acknowledge
    | Swap
    | ReadEntry
    | StepDown
)
Actions = list[Action]

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
        message.ask.confirms = request.confirms > 0
        message.ask.SetInParent()
    elif isinstance(request, Append):
        append = message.append
        append.segment, append.segment_epoch = request.segment, request.segment_epoch
        append.epoch_id, append.offset = request.epoch_id, request.offset
        append.needed, append.damage = request.needed, request.damage
        append.data, append.crc = data, value(data)
        if request.previous is not None:
            append.previous.CopyFrom(link_message(request.previous))
        if request.instead_of is not None:
            append.instead_of.CopyFrom(_links_message(request.instead_of))
    return message.SerializeToString()


def decode_request(data: bytes) -> tuple[Name, Followed, bytes]:
    """Parse a `FollowRequest`; raise `DecodeError`, or `Malformed` if bytes have changed."""
    message = pb.FollowRequest.FromString(data)
    name, kind = Name.of(message.log), message.WhichOneof("request")
    if kind == "append":
        return name, _append_of(message.epoch, message.append), message.append.data
    if kind == "ask":
        ask = message.ask
        return name, Ask(message.epoch, ask.takes_damaged, int(ask.confirms)), b""
    return name, SignOfLife(message.epoch), b""


def encode_answer(epoch: int, answer: Answer | None) -> bytes:
    """Return a `FollowReply`; None answers a heartbeat.

    The answer to a question that confirms is a position, without segments. A replica of an older
    Penstock sends its whole position, which confirms as much.
    """
    reply = pb.FollowReply(epoch=epoch)
    if isinstance(answer, Confirmed):
        reply.standing.SetInParent()
    elif isinstance(answer, ReplicaState):
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


def decode_answer(data: bytes, request: Request | SignOfLife | None = None) -> Answer | None:
    """Read the `FollowReply` to a request; raises `DecodeError`."""
    reply = pb.FollowReply.FromString(data)
    kind = reply.WhichOneof("answer")
    if kind == "standing":
        if isinstance(request, Ask) and request.confirms:
            return Confirmed(reply.epoch, request.confirms)
        return ReplicaState(reply.epoch, tuple(map(link_of, reply.standing.links)))
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
            "they are asked for again; if it lasts, check memory and network of both machines",
            Code.COPY_MALFORMED,
        )
    return reply.data


def link_message(link: Link) -> pb.LogLink:
    return pb.LogLink(number=link.number, epoch=link.epoch, end=link.end, epoch_id=link.epoch_id)


def link_of(message: pb.LogLink) -> Link:
    return Link(message.number, message.epoch, message.end, message.epoch_id)


def _append_of(epoch: int, message: pb.LogAppend) -> Append:
    if message.crc != value(message.data):
        raise Malformed(
            f"the bytes for segment {message.segment} from offset {message.offset} on have changed"
            " on the way: their CRC is another one",
            "they are sent again; if it lasts, check memory and network of both machines",
            Code.COPY_MALFORMED,
        )
    instead_of = tuple(map(link_of, message.instead_of.links))
    return Append(
        epoch=epoch,
        segment=message.segment,
        segment_epoch=message.segment_epoch,
        offset=message.offset,
        end=message.offset + len(message.data),
        previous=link_of(message.previous) if message.HasField("previous") else None,
        instead_of=instead_of if message.HasField("instead_of") else None,
        needed=message.needed,
        damage=message.damage,
        epoch_id=message.epoch_id,
    )


def _links_message(links: tuple[Link, ...]) -> pb.LogLinks:
    return pb.LogLinks(links=map(link_message, links))

"""Replicas: those that this Pump keeps of other logs, each written by its own thread.

    copies/pump-1/          the log of pump-1; the folder's name is its node id, quoted as in a URL
        .node .cluster      as in the data folder of a Pump, so that a failover can use it
        .disk               this Pump's, for the replica is on the same disk
        .lock               held while the log is followed
        log/                the replica, see penstock/log/replica.py
        damaged/            remains of a replica that no disk could repair and that restarted

Requests for a log are carried out in order, by a thread that does nothing else. A sync takes
milliseconds, and neither the Pump's own writes nor another log may wait for it. Other threads write
the segments that are sent whole. Only moving such a segment into place waits for earlier requests.

`close_one` releases a folder so that a Pump can run on it. That Pump leaves its index there, which
is valid only for the log at that time. The Pump may come back and use it. Before a primary's
request, which may change the log, is carried out, the index is removed.

The followed logs are those of other Pumps. The own log is followed while another disk is its
primary and this Pump waits until every Drainer has it (`takes_own`); that replica is separate from
the own log's folder.

The module is long because it is one path: from the call of a primary to the thread of a replica.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

import grpc
from google.protobuf.message import DecodeError

from penstock.codes import Code
from penstock.errors import (
    Corrupt,
    Malformed,
    NeedsOperator,
    PenstockError,
    Retryable,
    code_fields,
    coded,
)
from penstock.http2.grpc_front import GrpcFront
from penstock.http2.unary import Reply
from penstock.log.files import Files, lock_folder, sync_folder
from penstock.log.repair import Damage, Patch, Salvaged, repair_segment
from penstock.log.replica import OlderSegment, read_mark
from penstock.log.segment import BEGIN, Segment, segment_name
from penstock.node.output import NO_TEXT
from penstock.pb import penstock_pb2 as pb
from pump.cluster.identity import mark_copy
from pump.replication.protocol.chain import Link
from pump.replication.protocol.messages import (
    FOLLOW_METHOD,
    Answer,
    Append,
    Followed,
    Name,
    Prepend,
    Refusal,
    ReplicaState,
    SignOfLife,
    Stretch,
    decode_read,
    decode_request,
    encode_answer,
    encode_bytes,
    link_of,
)
from pump.replication.repair import ClosedLogRepair, Donors, Repairs
from pump.replication.replica_log import DAMAGED_FOLDER, ReplicaLog
from pump.service.admission import invalid, undecodable
from pump.service.grpc_server import abort, add_service, status_of
from pump.store.space import Reserve

if TYPE_CHECKING:
    from penstock.http2.unary import UnaryCall

log = logging.getLogger(__name__)

REPLICAS_FOLDER = "copies"
_DROPPED = "+dropped"
"""Suffix of the name of a folder that is being deleted; no quoted node id has a plus."""
_EPOCH_MAX = (1 << 32) - 2
"""The largest epoch that fits in a segment's header."""
_WAITING_MAX = 16
"""Requests for one log. A primary has one in progress, plus one for each connection."""
_REPAIR_AGAIN_S = 3.0
"""The delay before asking other disks again for missing bytes; the second attempt decides."""
_FILES = Files()

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptReplica:
    """A replica of another Pump's log on this Pump's disk."""

    node_id: str
    summary: str
    bytes: int = field(metadata=NO_TEXT)
    first_segment: int = field(metadata=NO_TEXT)
    epoch: int = field(metadata=NO_TEXT)
    damaged: str | None


class _Replica:
    """One replica: its folder, its thread, and the last time that its primary made a request."""

    def __init__(self, node_id: str, folder: Path, repair: ClosedLogRepair) -> None:
        self.node_id = node_id
        self.folder = folder
        self.log = ReplicaLog(folder / "log", _FILES, repair)
        self.thread = ThreadPoolExecutor(1, "pump-copy")
        self.waiting = 0
        self.heard_s: float | None = None
        self.is_closed = False
        self.problem = ""
        self._lock: int | None = None
        self._may_have_index = False  # An index may have been left since the folder was locked.

    @property
    def is_held(self) -> bool:
        return self._lock is not None

    def hold(self, mark: Callable[[Path], None]) -> None:
        """Lock the folder unless it is locked, and ensure that it bears this replica's marks."""
        if self._lock is not None:
            return
        for folder in (self.folder.parent, self.folder):
            _FILES.names(folder)  # This creates it durably.
        try:
            lock = lock_folder(self.folder, "Pump")
        except NeedsOperator as error:
            raise Retryable(
                f"the copy of {self.node_id} is in use: {error.problem}", Code.COPY_NOT_FOLLOWED
            ) from error
        try:
            mark(self.folder)
        except BaseException:
            os.close(lock)
            raise
        self._lock, self._may_have_index = lock, True

    def remove_index(self) -> None:
        if not self._may_have_index:
            return
        index = self.folder / "index"
        if index.exists():
            shutil.rmtree(index)
            sync_folder(self.folder)
        self._may_have_index = False

    def open_complete(self) -> None:
        """Open the log unless it is open; raise `Corrupt` if one of its files was deleted."""
        self.log.open()
        for link in self.log.links:
            path = self.log.folder / segment_name(link.number)
            size = path.stat().st_size if path.exists() else 0
            if size < link.end:
                raise Corrupt(
                    *(str(path), size, f"{link.end} bytes were written"), code=Code.SEGMENT_DAMAGED
                )

    def let_go(self) -> None:
        self.log.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def delete(self) -> None:
        """Durably delete the folder, which must be held: until renamed, it is a replica."""
        self.log.close()
        dropped = self.folder.with_name(self.folder.name + _DROPPED)
        shutil.rmtree(dropped, ignore_errors=True)
        self.folder.rename(dropped)
        sync_folder(dropped.parent)
        self.let_go()
        shutil.rmtree(dropped)
        sync_folder(dropped.parent)


class Replicas:
    """All replicas of other Pumps' logs in one data folder; for one event loop."""

    def __init__(
        self,
        data_folder: Path,
        *,
        node_id: str,
        cluster_id: int,
        disk: str,
        clock: Callable[[], float] = time.monotonic,
        repairs: Repairs | None = None,
        sources: Callable[[str], Donors] = lambda node_id: nullcontext(()),
        epoch_listed: Callable[[str], int | None] = lambda node_id: _EPOCH_MAX,
        reserve: Reserve | None = None,
    ) -> None:
        """`sources` returns the other disks that may have a Pump's log, to repair corruption from.

        `epoch_listed` returns the epoch of a log's entry in etcd; None without an entry: no replica
        is started. `reserve` is the part of the volume that replicas leave free; None lets them
        fill the volume.
        """
        self.takes_own: bool | None = None
        """Whether a replica of the own log is accepted; None until that log's primary is known."""
        self._epoch_listed = epoch_listed
        self._reserve = reserve
        self._repairs, self._sources = repairs or Repairs(), sources
        self._folder = data_folder / REPLICAS_FOLDER
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._disk = disk
        self._clock = clock
        self._copies: dict[str, _Replica] = {}
        self._is_closed = False
        self._drafts = itertools.count()
        # One thread, so that a step with a draft is complete before the next step starts.
        self._draft_thread = ThreadPoolExecutor(1, "pump-copy-older")

    async def start(self) -> None:
        """Open all replicas; a replica that cannot be opened reports this in its status."""
        names = sorted(path.name for path in self._folder.glob("*") if path.is_dir())
        for name in names:
            if name.endswith(_DROPPED):
                await asyncio.to_thread(shutil.rmtree, self._folder / name, ignore_errors=True)
            elif _folder_name(unquote(name)) != name:
                log.warning("%s: no folder of a copy, left alone", self._folder / name)
            else:
                self._add(unquote(name))
        opened = (self._in_turn(copy, copy.log.open) for copy in self._copies.values())
        for failure in await asyncio.gather(*opened, return_exceptions=True):
            if isinstance(failure, PenstockError) and failure.code is Code.COPY_NOT_FOLLOWED:
                # A Pump that an earlier run of this Pump started still serves the log.
                log.info("left alone: %s", failure)
            elif isinstance(failure, PenstockError):
                log.error("a copy of another Pump's log cannot be opened: %s", failure)
            elif failure is not None:
                raise failure

    async def close(self) -> None:
        """Stop following all logs and release their folders; no call may be in progress."""
        if self._is_closed:
            return
        self._is_closed = True
        copies = self._copies.values()
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(c.thread, c.let_go) for c in copies))
        for thread in (self._draft_thread, *(copy.thread for copy in copies)):
            thread.shutdown(wait=False)

    def _add(self, node_id: str) -> _Replica:
        folder = self._folder / _folder_name(node_id)
        repair = ClosedLogRepair(
            *(folder / "log", _FILES, self._repairs, partial(self._sources, node_id)),
            catching_up=partial(read_mark, _FILES, folder / "log"),
            again_s=_REPAIR_AGAIN_S,
        )
        copy = self._copies[node_id] = _Replica(node_id, folder, repair)
        return copy

    # Requests of a primary.

    async def follow(self, name: Name, request: Followed, data: bytes) -> Answer | None:
        """Carry out a request after all earlier requests, and return the answer.

        `data` are the bytes of an Append. Raises `NeedsOperator` for another cluster or disk,
        `Malformed`, `Corrupt` for a damaged replica, and `Retryable` for everything else.
        """
        begun = self.begin(name, request, data)
        return await begun if isinstance(begun, asyncio.Future) else begun

    def begin(
        self, name: Name, request: Followed, data: bytes
    ) -> Answer | asyncio.Future[Answer] | None:
        copy = self._asked(name)
        if copy is None:
            if isinstance(request, SignOfLife):
                return None
            if self._epoch_listed(name.node_id) is None:
                raise Retryable(
                    f"etcd lists no copies of a log of {name.node_id}", Code.COPY_NOT_FOLLOWED
                )
            copy = self._add(name.node_id)
        if refusal := self._heard(copy, request.epoch):
            return refusal
        if isinstance(request, SignOfLife):
            return None
        if isinstance(request, Append):
            begins = request.instead_of is not None or request.damage > 0
            if self._reserve is not None:
                self._reserve.check_copy(len(data), is_new=begins)
        return self._answered(copy, lambda: copy.log.answer(request, data))

    async def prepend(self, name: Name, request: Prepend, pieces: AsyncIterable[bytes]) -> Answer:
        """Store a whole older segment while live groups continue; raises as `follow` does."""
        copy = self._asked(name)
        if copy is None:
            return ReplicaState(request.epoch, ())
        if refusal := self._heard(copy, request.epoch):
            return refusal
        if self._reserve is not None:
            self._reserve.check_copy(request.link.end, is_new=True)
        aside = partial(self._aside, copy)
        older = await aside(OlderSegment, _FILES, copy.log.folder, request.link, next(self._drafts))
        try:
            async for data in pieces:
                await aside(older.write, data)
            await aside(older.finish)
            return await self._answered(copy, lambda: copy.log.prepend(request, older))
        finally:
            if self._is_closed:
                older.drop()
            else:
                await aside(older.drop)

    def _aside(
        self, copy: _Replica, work: Callable[..., _Result], *arguments: Any
    ) -> asyncio.Future[_Result]:
        """Work on a draft in its thread; `Retryable` once this Pump stops."""
        if self._is_closed:
            raise _not_followed(copy.node_id)
        return asyncio.get_running_loop().run_in_executor(self._draft_thread, work, *arguments)

    # Queries and actions of this Pump.

    def names(self) -> list[str]:
        """Return the node ids of the Pumps whose logs have a replica here."""
        return sorted(self._copies)

    def facts(self) -> tuple[KeptReplica, ...]:
        found = []
        for node_id in self.names():
            copy = self._copies[node_id]
            links, aside = copy.log.links, copy.folder / DAMAGED_FOLDER
            size, first = sum(link.end for link in links), links[0].number if links else 0
            epoch = links[-1].epoch if links else 0
            text = f"{size} bytes from segment {first} on, epoch {epoch}"
            set_aside = f"set aside in {aside}; delete it once no Pump has damaged_places"
            replica = KeptReplica(
                node_id=node_id,
                summary=copy.problem or text,
                bytes=size,
                first_segment=first,
                epoch=epoch,
                damaged=set_aside if any(aside.glob("*")) else None,
            )
            found.append(replica)
        return tuple(found)

    def folder(self, node_id: str) -> Path:
        """Return a replica's folder, on which a Pump can run once the replica is closed."""
        return self._copies[node_id].folder

    def is_taken(self, node_id: str) -> bool | None:
        """Return whether a replica of a log is accepted here; None while this is unknown."""
        return True if node_id != self._node_id else self.takes_own

    def is_held(self, node_id: str) -> bool:
        return self._copies[node_id].is_held

    def last_heard_s(self, node_id: str) -> float | None:
        """Return when the primary of a log last made a request, by the monotonic clock.

        None if it has made none since this Pump started. Requests of an earlier epoch do not count.
        """
        return self._copies[node_id].heard_s

    def links(self, node_id: str) -> tuple[Link, ...]:
        """Return a replica's segments for comparing logs; empty while it is not open."""
        return self._copies[node_id].log.links

    def segments(self, node_id: str) -> list[Segment]:
        """Return a replica's segments, oldest first; empty if it is not open or is gone."""
        copy = self._copies.get(node_id)
        return [] if copy is None else copy.log.segments()

    def repair(self, node_id: str, segment: Segment, damages: Sequence[Damage]) -> None:
        """Repair damage in a replica with bytes of other disks; needs a separate thread.

        The fetched bytes are written between two requests of the primary, so the primary's
        requests need not wait for other disks.
        """
        copy = self._copies.get(node_id)
        if copy is None:
            return

        def write(patch: Patch) -> None:
            assert copy is not None
            try:
                done = copy.thread.submit(copy.log.put_back, segment, patch)
            except RuntimeError as error:  # The replica was dropped during the fetch.
                raise _not_followed(node_id) from error
            done.result()

        file = _FILES.open(segment.path)
        try:
            with self._sources(node_id) as sources:
                found = repair_segment(
                    *(Salvaged(file), segment.number, segment.seed, damages),
                    sources=sources,
                    write=write,
                )
        finally:
            file.close()
        self._repairs.note(segment.path, found)

    async def close_one(self, node_id: str) -> tuple[Link, ...]:
        """Stop following a log and release its folder, so that a Pump can run on it.

        Returns the replica's segments; all of its data is on the disk by then. Raises any error of
        opening it, and closes it nevertheless.
        """
        copy = self._copies[node_id]
        copy.is_closed = True
        try:
            await self._in_turn(copy, copy.open_complete)
            return copy.log.links
        finally:
            await asyncio.get_running_loop().run_in_executor(copy.thread, copy.let_go)

    async def open_one(self, node_id: str) -> None:
        copy = self._copies[node_id]
        copy.is_closed = False
        await self._in_turn(copy, copy.log.open)

    async def drop(self, node_id: str) -> None:
        """Durably delete a replica that is no longer needed; raise `Retryable` on failure."""
        copy = self._copies[node_id]
        copy.is_closed = True
        try:
            await self._in_turn(copy, copy.delete)
        except BaseException:
            copy.is_closed = False
            raise
        del self._copies[node_id]
        copy.thread.shutdown(wait=False)

    async def read(self, name: Name, wanted: Stretch) -> bytes:
        """Return bytes of a segment as they are on this disk, of a replica or of this Pump's log.

        The bytes may be corrupted, or belong to another log of that name, so a caller must accept
        only bytes that prove themselves. They can therefore be read while the log is not open,
        while another Pump runs on it, and from a replica that was set aside. Raises `NeedsOperator`
        for another cluster or disk, and `Retryable` if the segment does not exist.
        """
        self._check(name)
        folder = self._folder.parent
        if name.node_id != self._node_id or name.node_id in self._copies:
            folder = self._folder / _folder_name(name.node_id)
        if wanted.edges:
            return await asyncio.to_thread(_edges, folder / "log")
        segment = segment_name(wanted.segment)
        paths = [folder / "log" / segment, folder / DAMAGED_FOLDER / segment]
        return await asyncio.to_thread(_read, paths, wanted)

    def _check(self, name: Name) -> None:
        """Raise `NeedsOperator` unless `name` addresses this cluster and this disk."""
        if name.cluster_id != self._cluster_id:
            raise NeedsOperator(
                f"a copy for cluster {name.cluster_id} is asked of a Pump of {self._cluster_id}",
                "check --etcd-urls of the Pump that asks",
                Code.CLUSTER_MISMATCH,
            )
        if name.disk != self._disk:
            raise NeedsOperator(
                f"{name.node_id} asks for its copy on disk {name.disk}, but this is {self._disk}",
                "the data folder was replaced, and what it held is not here; the Pump that"
                " asks takes that disk off its list",
                Code.COPY_OTHER_DISK,
            )

    def _asked(self, name: Name) -> _Replica | None:
        """Return the addressed replica, None if there is none; raise if it must not be served."""
        self._check(name)
        if not self.is_taken(name.node_id):
            raise NeedsOperator(
                f"a copy of the log of {name.node_id} is asked of that Pump, which may have it",
                "its disk has a log of that name already; the Pump that asks takes another",
                Code.COPY_OTHER_DISK,
            )
        if not name.node_id:
            raise Malformed(
                "a copy is asked for without the node id of its Pump",
                "the Pump that asks has a defect, or is a newer Penstock",
                Code.COPY_MALFORMED,
            )
        copy = self._copies.get(name.node_id)
        if self._is_closed or (copy is not None and copy.is_closed):
            raise _not_followed(name.node_id)
        return copy

    def _heard(self, copy: _Replica, epoch: int) -> Refusal | None:
        """Record a request of a primary, or return the refusal for a fenced primary.

        An epoch is promised only if etcd may list it by now. A primary has won its epoch in etcd,
        and this Pump's watch may be one change late. Promising any other epoch would lock the
        primary out of its log.
        """
        if epoch < copy.log.promised:
            return Refusal(copy.log.promised)
        listed = self._epoch_listed(copy.node_id)
        if listed is not None and epoch > listed + 1:
            raise Retryable(
                f"a primary of epoch {epoch} asks for the copy of {copy.node_id}, but etcd lists"
                f" epoch {listed}",
                Code.COPY_NOT_FOLLOWED,
            )
        copy.heard_s = self._clock()
        return None

    def _answered(self, copy: _Replica, work: Callable[[], Answer]) -> asyncio.Future[Answer]:
        if copy.is_closed:  # Closed since the request came.
            raise _not_followed(copy.node_id)
        if copy.waiting >= _WAITING_MAX:
            raise Retryable(
                f"{copy.waiting} requests for the copy of {copy.node_id} wait for its disk",
                Code.COPY_NOT_FOLLOWED,
            )

        def followed() -> Answer:
            copy.remove_index()
            return work()

        return self._in_turn(copy, followed)

    def _in_turn(self, copy: _Replica, work: Callable[[], _Result]) -> asyncio.Future[_Result]:
        """Do `work` in the replica's thread, with its folder held, after all earlier work."""
        copy.waiting += 1
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(copy.thread, self._held, copy, work)

        def note(done: asyncio.Future[_Result]) -> None:
            copy.waiting -= 1
            error = None if done.cancelled() else done.exception()
            if isinstance(error, PenstockError):
                copy.problem = str(error)
            elif error is None and not done.cancelled():
                copy.problem = copy.log.problem

        done.add_done_callback(note)
        return done

    def _held(self, copy: _Replica, work: Callable[[], _Result]) -> _Result:
        try:
            copy.hold(
                partial(
                    mark_copy, node_id=copy.node_id, cluster_id=self._cluster_id, disk=self._disk
                )
            )
            return work()
        except OSError as error:
            raise Retryable(f"{copy.folder}: {error}", Code.LOG_WRITE_FAILED) from error


def _not_followed(node_id: str) -> Retryable:
    return Retryable(
        f"the copy of {node_id} is not followed now: this Pump stops, or another one may run on it",
        Code.COPY_NOT_FOLLOWED,
    )


def _read(paths: Sequence[Path], wanted: Stretch) -> bytes:
    for path in paths:
        try:
            file = _FILES.open(path)
        except FileNotFoundError:
            continue
        try:
            return Salvaged(file).read(wanted.offset, wanted.length)
        finally:
            file.close()
    raise Retryable(f"segment {wanted.segment} is not on this disk", Code.BYTES_NOT_HERE)


def _edges(folder: Path) -> bytes:
    """Return the headers of a folder's oldest and newest segments; empty without segments."""
    paths = sorted(folder.glob("*.seg"), key=lambda path: (len(path.name), path.name))
    heads = []
    for path in paths[:1] + paths[-1:]:
        with path.open("rb") as file:
            heads.append(file.read(BEGIN))
    return b"".join(heads)


def _folder_name(node_id: str) -> str:
    """Return a folder name for any node id; `unquote` restores the id."""
    name = quote(node_id, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name


REPLICA_SERVICE = "penstock.Replica"
_SILENCE_S_MAX = 60.0
"""The time-out for the next piece of a segment; a live primary sends it without delay."""


class ReplicaService:
    """The handlers of `penstock.Replica`."""

    def __init__(self, logs: Replicas) -> None:
        self._logs = logs

    def add_to(self, server: Any) -> None:
        add_service(server, REPLICA_SERVICE, self.methods())
        if isinstance(server, GrpcFront):
            server.add_fast_unary(FOLLOW_METHOD, self.follow_fast)

    def methods(self) -> dict[str, Any]:
        return {
            "Follow": grpc.unary_unary_rpc_method_handler(self.follow),
            "Prepend": grpc.stream_unary_rpc_method_handler(self.prepend),
            "Read": grpc.unary_unary_rpc_method_handler(self.read),
        }

    async def follow(self, data: bytes, context: Any) -> bytes:
        """Answer once the request is executed and its data is on disk."""
        try:
            name, request, sent = decode_request(data)
        except DecodeError as error:
            await abort(context, undecodable(pb.FollowRequest, data, error))
        except PenstockError as error:
            await abort(context, error)
        try:
            begun = self._logs.begin(name, request, sent)
            answer = await begun if isinstance(begun, asyncio.Future) else begun
        except (PenstockError, OSError) as error:
            await abort(context, error)
        return encode_answer(request.epoch, answer)

    def follow_fast(self, data: bytes, call: UnaryCall) -> None:
        """Do as `follow` does, on the fast path: no task for each group of each log."""
        try:
            name, request, sent = decode_request(data)
            begun = self._logs.begin(name, request, sent)
        except DecodeError as error:
            _fail(call, undecodable(pb.FollowRequest, data, error))
        except (PenstockError, OSError) as error:
            _fail(call, error)
        else:
            if isinstance(begun, asyncio.Future):
                begun.add_done_callback(partial(_settle, call, request.epoch))
            else:
                call.answer(Reply(encode_answer(request.epoch, begun)))

    async def prepend(self, messages: AsyncIterable[bytes], context: Any) -> bytes:
        """Answer once the whole segment is on disk, before the first segment."""
        pieces = _pieces(aiter(messages))
        try:
            first = await anext(pieces, None)
            if first is None:
                raise invalid("a call without a piece of a segment")

            async def contents() -> AsyncIterator[bytes]:
                yield first.data
                async for piece in pieces:
                    yield piece.data

            request = Prepend(first.epoch, link_of(first.link))
            answer = await self._logs.prepend(Name.of(first.log), request, contents())
        except (PenstockError, OSError) as error:
            await abort(context, error)
        return encode_answer(request.epoch, answer)

    async def read(self, data: bytes, context: Any) -> bytes:
        try:
            name, wanted = decode_read(data)
        except DecodeError as error:
            await abort(context, undecodable(pb.ReadRequest, data, error))
        try:
            found = await self._logs.read(name, wanted)
        except (PenstockError, OSError) as error:
            await abort(context, error)
        return encode_bytes(found)


def _settle(call: UnaryCall, epoch: int, done: asyncio.Future[Answer]) -> None:
    error = asyncio.CancelledError() if done.cancelled() else done.exception()
    if error is None:
        call.answer(Reply(encode_answer(epoch, done.result())))
    else:
        _fail(call, error)


def _fail(call: UnaryCall, error: BaseException) -> None:
    if not isinstance(error, PenstockError | OSError | asyncio.CancelledError):
        log.error("Follow failed", exc_info=error)
    call.fail(status_of(error), coded(error), code_fields(error))


async def _pieces(messages: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    while True:
        try:
            data = await asyncio.wait_for(anext(messages), _SILENCE_S_MAX)
            yield pb.PrependPiece.FromString(data)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise Retryable(
                f"no piece of the segment came for {_SILENCE_S_MAX:.0f} s", Code.COPY_NOT_FOLLOWED
            ) from error
        except DecodeError as error:
            raise undecodable(pb.PrependPiece, data, error) from error

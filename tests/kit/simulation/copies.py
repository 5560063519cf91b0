"""Copies: what `pump.replication.replicas` does, around the real `ReplicaLog`, and the network.

That module lives in an event loop, with threads beside it. Here each copy has one task, which
carries out one request after the other, also those whose caller has given up.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.log.replica import OlderSegment
from penstock.log.segment import BEGIN, segment_name
from penstock.pb import penstock_pb2 as pb
from pump.replication.protocol.messages import (
    READ_METHOD,
    Answer,
    Append,
    Ask,
    Followed,
    Name,
    Prepend,
    Refusal,
    SignOfLife,
    decode_read,
    decode_request,
    encode_answer,
    encode_bytes,
    link_of,
)
from pump.replication.replica_log import ReplicaLog
from tests.kit.fakes.files import MemoryFiles
from tests.kit.simulation.tasks import Process, SimpleQueue, Tasks, Threading

if TYPE_CHECKING:
    from tests.kit.simulation.switches import Rules


Reply = Callable[[Answer | Retryable | None], object]
"""Takes an answer, or why there is none."""


class Copy:
    """One copy: requests wait for the one before."""

    def __init__(self, tasks: Tasks, folder: Path, log: ReplicaLog) -> None:
        self.folder = folder
        self.log = log
        self.heard_s: float | None = None
        self.is_closed = False
        self.work: SimpleQueue = SimpleQueue(tasks)


class Replicas:
    """All copies of one machine, in the process of its Pump."""

    def __init__(
        self,
        tasks: Tasks,
        rules: Rules,
        *,
        own: str,
        disk: str,
        process: Process,
        files: MemoryFiles,
        folder: Path,
    ) -> None:
        self._tasks = tasks
        self._rules = rules
        self._own = own
        self._disk = disk
        self._process = process
        self._files = files
        self._folder = folder
        self._drafts = 0
        self.takes_own: bool | None = None
        self.copies: dict[str, Copy] = {}

    def add(self, name: str) -> Copy:
        folder = self._folder / name
        log = self._rules.followed(folder / "log", self._files)
        copy = self.copies[name] = Copy(self._tasks, folder, log)
        self._tasks.spawn(lambda: self._run(copy), f"copy of {name}", self._process)
        return copy

    def open(self, copy: Copy) -> None:
        """Follow a log; its segments are known before its primary is heard."""
        copy.is_closed = False
        copy.work.put((copy.log.open, lambda answer: None))

    def follow(self, data: bytes, reply: Reply) -> None:
        """Queue a request; raise what is said at once."""
        name, request, payload = decode_request(data)
        copy = self._asked(name)
        if refusal := self._heard(copy, request):
            reply(refusal)
        elif isinstance(request, SignOfLife):
            reply(None)
        else:
            followed: Ask | Append = request
            copy.work.put((lambda: copy.log.answer(followed, payload), reply))

    def prepend(self, pieces: Iterable[bytes], reply: Reply) -> None:
        found = list(map(pb.PrependPiece.FromString, pieces))
        copy = self._asked(Name.of(found[0].log))
        request = Prepend(found[0].epoch, link_of(found[0].link))
        if refusal := self._heard(copy, request):
            reply(refusal)
            return
        self._drafts += 1
        serial = self._drafts

        def draft() -> None:
            try:
                older = OlderSegment(self._files, copy.log.folder, request.link, serial)
                try:
                    for piece in found:
                        older.write(piece.data)
                    older.finish()
                    reply(self.in_turn(copy, lambda: copy.log.prepend(request, older)))
                finally:
                    older.drop()
            except PenstockError:
                pass  # The one who asked waits in vain.

        self._tasks.spawn(draft, "draft", self._process)

    def read(self, data: bytes) -> bytes:
        """Return what another disk asks for of a log, as `pump.replication.replicas` does."""
        name, wanted = decode_read(data)
        if name.disk != self._disk:
            raise NeedsOperator("another disk", hint="none", code=Code.COPY_OTHER_DISK)
        folder = self._folder / name.node_id / "log"
        if name.node_id == self._own and name.node_id not in self.copies:
            folder = self._folder.parent / "own" / "log"
        nodes = self._files.nodes
        if wanted.edges:
            names = sorted(n for n in self._files.names(folder) if n.endswith(".seg"))
            return b"".join(nodes[folder / n].data[:BEGIN] for n in names[:1] + names[-1:])
        node = nodes.get(folder / segment_name(wanted.segment))
        if node is None:
            raise Retryable("no such segment", code=Code.BYTES_NOT_HERE)
        return bytes(node.data[wanted.offset : wanted.offset + wanted.length])

    def in_turn(self, copy: Copy, work: Callable[[], Any]) -> Any:
        """Do something after what waits, and return what comes of it."""
        over, found = Threading(self._tasks).Event(), []

        def reply(answer: Any) -> None:
            found.append(answer)
            over.set()

        copy.work.put((work, reply))
        over.wait()
        if isinstance(found[0], Retryable):
            raise found[0]
        return found[0]

    def _asked(self, name: Name) -> Copy:
        if name.disk != self._disk:
            raise NeedsOperator("another disk", hint="none", code=Code.COPY_OTHER_DISK)
        if name.node_id == self._own and not self.takes_own:
            raise NeedsOperator("the own log", hint="none", code=Code.COPY_OTHER_DISK)
        copy = self.copies.get(name.node_id) or self.add(name.node_id)
        if copy.is_closed:
            raise Retryable("not followed", code=Code.COPY_NOT_FOLLOWED)
        return copy

    def _heard(self, copy: Copy, request: Followed | Prepend) -> Refusal | None:
        if request.epoch < copy.log.promised:
            return Refusal(copy.log.promised)
        copy.heard_s = self._tasks.now_s
        return None

    def _run(self, copy: Copy) -> None:
        while True:
            work, reply = copy.work.get()
            if self._rules.removes_indexes:
                shutil.rmtree(copy.folder / "index", ignore_errors=True)
            try:
                reply(work())
            except Retryable as error:
                reply(error)


class Machines(Protocol):
    """Who can be reached."""

    def copies_at(self, address: str) -> Replicas | None:
        """Return what answers there."""

    def is_cut_off(self, address: str) -> bool:
        """Return whether the network has parted the caller from there."""


class Network:
    """Carries requests, loses some, is late with others, and delivers some of them twice."""

    def __init__(self, tasks: Tasks, chance: random.Random, machines: Machines) -> None:
        self.tasks = tasks
        self.chance = chance
        self.machines = machines
        self.loss = self.doubling = self.lateness = 0.0
        self.generation = 0
        """Nothing that was sent in an earlier one arrives once more."""

    def channel(self, address: str, tls: object) -> Channel:
        return Channel(self, address)

    def unary(self, channel: Channel, method: str, request: bytes, *, timeout_s: float) -> bytes:
        """Stand in for `penstock.http2.client.calls.unary`."""
        if method == READ_METHOD:
            return self._read(channel.address, request)
        if self.chance.random() < self.doubling:
            again_s = self.chance.uniform(0.0, 2.0)
            generation = self.generation
            self.tasks.later(
                again_s, lambda: self._arrive_again(channel.address, request, generation)
            )
        return self._called(
            channel.address, timeout_s, lambda copies, reply: copies.follow(request, reply)
        )

    def stream_unary(
        self, channel: Channel, method: str, messages: Iterable[bytes], *, timeout_s: float
    ) -> bytes:
        """Stand in for `penstock.http2.client.calls.stream_unary`."""
        pieces = list(messages)
        self.tasks.sleep(self.chance.uniform(0.0, 0.2))
        within_s = min(timeout_s, 10.0)
        return self._called(
            channel.address, within_s, lambda copies, reply: copies.prepend(pieces, reply)
        )

    def delay(self) -> None:
        """Wait as long as a message takes."""
        is_late = self.chance.random() < self.lateness
        self.tasks.sleep(self.chance.uniform(0.0001, 0.002 if not is_late else 1.0))

    def is_lost(self, address: str) -> bool:
        return self.machines.is_cut_off(address) or self.chance.random() < self.loss

    def _called(
        self, address: str, timeout_s: float, call: Callable[[Replicas, Reply], None]
    ) -> bytes:
        over, found = Threading(self.tasks).Event(), []

        def reply(answer: Answer | Retryable | None) -> None:
            found.append(answer)
            over.set()

        self.delay()
        copies = self.machines.copies_at(address)
        if copies is None:
            raise OSError("no one listens there")
        if not self.is_lost(address):
            try:
                call(copies, reply)
            except PenstockError as error:
                raise OSError(str(error)) from error
        over.wait(timeout_s)
        if not found or self.is_lost(address):
            raise OSError("no answer in time")
        self.delay()
        answer = found[0]
        if isinstance(answer, Retryable):
            raise OSError(str(answer))
        epoch = answer.epoch if answer is not None and not isinstance(answer, Refusal) else 0
        return encode_answer(epoch, answer)

    def _read(self, address: str, request: bytes) -> bytes:
        self.delay()
        copies = self.machines.copies_at(address)
        if copies is None or self.is_lost(address):
            raise OSError("no answer in time")
        try:
            return encode_bytes(copies.read(request))
        except PenstockError as error:
            raise OSError(str(error)) from error

    def _arrive_again(self, address: str, request: bytes, generation: int) -> None:
        copies = self.machines.copies_at(address)
        if copies is not None and generation == self.generation:
            with contextlib.suppress(PenstockError):
                copies.follow(request, lambda answer: None)


class Channel:
    def __init__(self, network: Network, address: str) -> None:
        self.address = address
        self._network = network

    def connect(self, timeout_s: float) -> None:
        self._network.delay()
        if self._network.machines.copies_at(self.address) is None:
            raise OSError("no one listens there")
        if self._network.is_lost(self.address):
            self._network.tasks.sleep(timeout_s)
            raise OSError("no answer in time")

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

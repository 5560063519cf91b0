"""Every state in which a crash may leave a disk: recorded call by call, built sector by sector.

Before each call that changes the disk, `RecordedFiles` notes what is on it for certain and what was
written since. `legal_states` then yields what the next boot may find, by the model in
pump/store/storage.py: synced bytes and names are there; of the others any sectors are, or zeros.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.kit.fakes.files import SECTOR, MemoryFiles, Node

Disk = dict[Path, bytes]
"""The files that are there, and their bytes."""


@dataclass(frozen=True)
class Written:
    """One file at one moment."""

    durable: bytes
    now: bytes
    pending: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True)
class Moment:
    """The disk between two calls; `mark` is whatever the workload wants to remember with it."""

    call: str
    durable: dict[Path, Written]
    names: dict[Path, Written]
    mark: object


class RecordedFiles(MemoryFiles):
    """Implements `Files`; `mark` is asked before each call."""

    def __init__(self, mark: Callable[[str], object]) -> None:
        super().__init__()
        self.moments: list[Moment] = []
        self._mark = mark

    def check(self, call: str, path: Path) -> None:
        if call != "read":
            self.note(call)
        super().check(call, path)

    def note(self, call: str) -> None:
        self.moments.append(
            Moment(call, _written(self.durable_names), _written(self.nodes), self._mark(call))
        )


def _written(names: dict[Path, Node]) -> dict[Path, Written]:
    return {
        path: Written(bytes(node.durable), bytes(node.data), tuple(node.pending))
        for path, node in names.items()
    }


def legal_states(moment: Moment) -> Iterator[tuple[str, Disk]]:
    """Yield every disk that a crash at `moment` may leave, each with a word about it, once."""
    seen: set[tuple[tuple[Path, bytes], ...]] = set()
    for which, names in (("durable names", moment.durable), ("all names", moment.names)):
        sectors = max((len(_sectors(file)) for file in names.values()), default=0)
        for word, keep in _choices(sectors):
            disk = {path: _built(file, keep) for path, file in names.items()}
            key = tuple(sorted(disk.items()))
            if key not in seen:
                seen.add(key)
                yield f"{which}, {word}", disk
    killed = {path: file.now for path, file in moment.names.items()}
    if tuple(sorted(killed.items())) not in seen:
        yield "killed", killed


Keep = Callable[[int], "bool | None"]
"""By number of an unsynced sector: True keeps it, False drops it, None leaves zeros."""


def _choices(sectors: int) -> Iterator[tuple[str, Keep]]:
    yield "nothing unsynced", lambda n: False
    yield "everything", lambda n: True
    yield "zeros", lambda n: None
    for k in range(sectors):
        yield from _choices_about(k)


def _choices_about(k: int) -> Iterator[tuple[str, Keep]]:
    yield f"the first {k}", lambda n: n < k
    yield f"the first {k}, then zeros", lambda n: n < k or None
    yield f"all but {k}", lambda n: n != k
    yield f"only {k}", lambda n: n == k


def _sectors(file: Written) -> list[tuple[int, bytes]]:
    found = []
    for offset, data in file.pending:
        end = offset
        while end < offset + len(data):
            begin, end = end, min((end // SECTOR + 1) * SECTOR, offset + len(data))
            found.append((begin, data[begin - offset : end - offset]))
    return found


def _built(file: Written, keep: Keep) -> bytes:
    found = bytearray(file.durable)
    for number, (begin, data) in enumerate(_sectors(file)):
        kept = keep(number)
        if kept is False:
            continue
        found.extend(bytes(max(0, begin + len(data) - len(found))))
        found[begin : begin + len(data)] = data if kept else bytes(len(data))
    return bytes(found)


def disk_of(state: Disk) -> MemoryFiles:
    files = MemoryFiles()
    for path, data in state.items():
        node = files.nodes[path] = files.durable_names[path] = Node()
        node.data, node.durable = bytearray(data), bytearray(data)
    return files

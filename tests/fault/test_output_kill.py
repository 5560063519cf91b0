"""A Drainer that writes files or a lake and dies at a named step, or at any moment; the bank.

Each run is a process of its own that ends by SIGKILL. What a reader sees at each moment that shares
no code with the product is the ledger: each transaction and each DDL once, in commit order. Files
hold it up to the savepoint. What Polars reads of a lake, by the versions that the lake names for a
commit_ts, is the bank at that commit_ts; after the last run that holds for every commit_ts that the
lake has a row for. Of a change log it is what the changes, one after the other, come to: each of
them must meet the row that is there.
"""

from __future__ import annotations

import json
import os
import random
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.pb import binlog_pb2
from tests.kit.crash.forked_drainers import SETTLED, ForkedDrainers
from tests.kit.delta.lake_reader import LakeReader, Versions
from tests.kit.fakes.local_drainer import Way
from tests.kit.files import plain_reader
from tests.kit.files.object_files import copied
from tests.kit.servers.fix_s3 import S3Server
from tests.kit.workloads.bank import Bank

pytestmark = pytest.mark.fault

KILLED = -9


class Output:
    """Where the runs write to, one ledger after the other."""

    ledger: ClassVar = {"seed": 5, "transactions": 24, "large_each": 10}
    url, strategy, fetched = "delta://{}/lake?interval=0", "merge", False
    dies_after_s = (0.1, 3.0)

    def __init__(self, drainers: ForkedDrainers, folder: Path) -> None:
        self._drainers = drainers
        self._folder = folder
        self._number = 0
        self.bank = Bank(**self.ledger)
        self.begin()

    def begin(self) -> None:
        """Begin with an empty folder."""
        self._number += 1
        self.folder = self._folder / str(self._number)
        url = self.url.format(self.place())
        self._way = Way(
            url=url,
            folder=self.folder,
            strategy=self.strategy,
            fetched=self.fetched,
            bytes_max=20_000,
        )

    def place(self) -> str:
        return str(self.folder)

    def run(
        self, *, kill_at: dict[str, int] | None = None, kill_after_s: float = 0.0
    ) -> tuple[int, Counter[str]]:
        """Let a Drainer run, and check what it leaves; return its exit code and its steps."""
        code, steps = self._drainers.run(
            self._way, bank=self.ledger, kill_at=kill_at, kill_after_s=kill_after_s
        )
        assert code in (SETTLED, KILLED), f"{kill_at}: it ended with {code}"
        through_ts = self.check()
        assert code == KILLED or through_ts == self.bank.last_ts
        return code, steps

    def settle(self) -> Counter[str]:
        """Let a Drainer run to the ledger's end; return its steps."""
        code, steps = self.run()
        assert code == SETTLED
        return steps

    def check(self) -> int:
        """Assert that the output is the bank at its checkpoint; return that."""
        raise NotImplementedError


class Files(Output):
    ledger: ClassVar = {"seed": 5, "transactions": 60, "large_each": 20}
    url, strategy = "file://{}/files?max-file-size=10KiB", "events"
    dies_after_s = (0.02, 0.6)

    def files(self) -> Path:
        return self.folder / "files"

    def check(self) -> int:
        files = self.files()
        path = files / "savepoint"
        if not path.exists():
            return 0
        saved = tomllib.loads(path.read_text())
        through_ts: int = saved["commitTS"]
        assert json.loads(saved["checkpoint"])["commitTS"] == through_ts
        found = plain_reader.entries(files)
        binlogs = [(ts, binlog_pb2.Binlog.FromString(data)) for ts, data in self.bank.binlogs]
        stamps = [ts for ts, binlog in binlogs if binlog.tp != binlog_pb2.Rollback]
        assert [entry.commit_ts for entry in found] == [ts for ts in stamps if ts <= through_ts]
        rows = plain_reader.replayed(found)
        state = self.bank.state_at(through_ts)
        assert {row[:3] for row in rows.get("bank.account", [])} == state.accounts
        assert Counter(row[:2] for row in rows.get("bank.entry", [])) == state.entries
        return through_ts


class Lake(Output):
    @property
    def lake(self) -> LakeReader:
        return LakeReader(self.folder / "lake")

    def check(self) -> int:
        through_ts = int(self.lake.checkpoint().get("commitTS", 0))
        states = self.lake.states()
        known = max((ts for ts in states if ts <= through_ts), default=0)
        assert self.bank.state_at(known) == self.bank.state_at(through_ts)
        for ts in sorted(ts for ts in states if ts >= known):
            self.check_state(ts, states[ts])
        return through_ts

    def settle(self) -> Counter[str]:
        steps = super().settle()
        for ts, versions in self.lake.states().items():
            self.check_state(ts, versions)
        return steps

    def check_state(self, ts: int, versions: Versions) -> None:
        state = self.bank.state_at(ts)
        accounts = self._rows(versions, "account", ["id", "owner", "balance"])
        assert set(accounts) == state.accounts
        assert len(accounts) == len(state.accounts)
        assert Counter(self._rows(versions, "entry", ["account", "amount"])) == state.entries

    def _rows(self, versions: Versions, name: str, columns: list[str]) -> list[tuple[object, ...]]:
        version = versions.get(("bank", name))
        if version is None:
            return []
        return self.lake.table("bank", name, version).select(columns).rows()


class Changes(Lake):
    url, strategy = "delta://{}/lake?interval=0&mode=changes", "events"

    def _rows(self, versions: Versions, name: str, columns: list[str]) -> list[tuple[object, ...]]:
        version = versions.get(("bank", name))
        if version is None:
            return []
        found: Counter[tuple[object, ...]] = Counter()
        places = set()
        for line in self.lake.log("bank", name, version):
            places.add((line["_commit_ts"], line["_seq"]))
            row = tuple(line[column] for column in columns)
            if line["_op"] in ("delete", "update_preimage"):
                assert found[row], f"{line} is not there"
                found[row] -= 1
            else:
                found[row] += 1
        assert len(places) == self.lake.table("bank", name, version).height
        return list(found.elements())


class InBucket(Output):
    bucket = ""

    def place(self) -> str:
        return f"{self.bucket}/{self._number}"

    @property
    def objects(self) -> Path:
        return Path(os.environ["S3_FOLDER"], self.bucket, str(self._number))


class ObjectFiles(InBucket, Files):
    url, strategy, bucket = "file+s3://{}/files?interval=0", "events", "files"

    def files(self) -> Path:
        found = self.objects / "files"
        if not (found / "savepoint").exists():
            return found
        self._copies += 1
        return copied(found, self.folder / f"copy-{self._copies}")

    _copies = 0


class ObjectMirror(InBucket, Lake):
    url, bucket = "delta+s3://{}/lake?interval=0", "mirror"

    @property
    def lake(self) -> LakeReader:
        return LakeReader(self.objects / "lake")


class ObjectChanges(ObjectMirror, Changes):
    url, bucket = "delta+s3://{}/lake?interval=0&mode=changes", "changes"


class FetchedFiles(Files):
    fetched = True


class FetchedChanges(Changes):
    fetched = True


@pytest.fixture(scope="module")
def drainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedDrainers]:
    with ForkedDrainers(tmp_path_factory.mktemp("drainers") / "log") as made:
        yield made


@pytest.fixture
def output(request: pytest.FixtureRequest, drainers: ForkedDrainers, tmp_path: Path) -> Output:
    made: Output = request.param(drainers, tmp_path)
    return made


KINDS: list[type[InBucket]] = [ObjectFiles, ObjectMirror, ObjectChanges]


@pytest.fixture(scope="module")
def objects_drainers(
    s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForkedDrainers]:
    """Drainers with the variables of a server of S3."""
    folders = [s3_server.add_bucket(each.bucket) for each in KINDS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("S3_FOLDER", str(folders[0].parent))
        with ForkedDrainers(tmp_path_factory.mktemp("drainers") / "log") as made:
            yield made


@pytest.mark.fault(
    "kill -9 at every named step of a batch, and twelve times at any moment: of a Drainer that"
    " writes files or a lake into an object store",
    "after each death and at the end each state that was promised is upstream's",
    cases="15 steps / 36",
)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_step_or_moment_an_object_store_has_the_bank(
    kind: type[Output], objects_drainers: ForkedDrainers, tmp_path: Path
) -> None:
    output = kind(objects_drainers, tmp_path)
    steps = output.settle()
    output.begin()
    for step in sorted(steps):
        code, _ = output.run(kill_at={step: min(2, steps[step])})
        if code == SETTLED:
            output.begin()
            assert output.run(kill_at={step: 1})[0] == KILLED, f"{step} was not passed"
    output.settle()
    chance, deaths = random.Random(4), 0
    while deaths < 12:
        output.begin()
        while output.run(kill_after_s=chance.uniform(0.1, 6.0))[0] == KILLED and deaths < 12:
            deaths += 1
        output.settle()


@pytest.mark.fault(
    "the Drainer is killed between two tables",
    "the batch is completed by the next run, and is there once",
    cases="3",
)
@pytest.mark.thorough
@pytest.mark.parametrize(
    "output", [Lake, Changes, FetchedChanges], ids=["mirror", "changes", "fetched"], indirect=True
)
def test_killed_between_two_tables_a_batch_is_there_once_and_whole(output: Output) -> None:
    # The batch's first table has it, its second has not.
    assert output.run(kill_at={"drainer.table_committed": 6})[0] == KILLED
    output.settle()


OUTPUTS = [
    pytest.param(Files, id="files"),
    pytest.param(FetchedFiles, id="fetched files", marks=pytest.mark.slow),
    pytest.param(Lake, id="mirror", marks=pytest.mark.slow),
    pytest.param(Changes, id="changes", marks=pytest.mark.slow),
    pytest.param(FetchedChanges, id="fetched changes", marks=pytest.mark.slow),
]


@pytest.mark.fault(
    "kill -9 at every named step of a batch, a hundred times at any step or moment: of a Drainer"
    " that writes files or a lake",
    "after each death files hold the ledger up to the savepoint, each transaction and DDL once;"
    " a lake the same, and at the end each state that was promised is upstream's",
    cases="14 steps / 580",
)
@pytest.mark.parametrize("output", OUTPUTS, indirect=True)
def test_killed_at_every_step_the_output_is_the_bank_at_its_checkpoint(output: Output) -> None:
    steps = output.settle()
    assert len(steps) > 12
    output.begin()
    for step in sorted(steps):
        code, _ = output.run(kill_at={step: min(2, steps[step])})
        if code == SETTLED:
            output.begin()
            assert output.run(kill_at={step: 1})[0] == KILLED, f"{step} was not passed"
    output.settle()


@pytest.mark.slow
@pytest.mark.parametrize("output", OUTPUTS, indirect=True)
def test_a_hundred_deaths_at_any_passing_of_any_step_or_moment(output: Output) -> None:
    steps = output.settle()
    chance = random.Random(3)
    deaths = 0
    while deaths < 100:
        output.begin()
        code = KILLED
        while code == KILLED and deaths < 100:
            if chance.random() < 0.6:
                step = chance.choice(sorted(steps))
                code, _ = output.run(kill_at={step: chance.randint(1, steps[step])})
            else:
                code, _ = output.run(kill_after_s=chance.uniform(*output.dies_after_s))
            deaths += code == KILLED
        output.settle()
